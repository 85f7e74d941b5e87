-- kind, group, threshold, reset_s, amount
k = k + 1
if not denied[group] then
  local value, reset_s, n = call('GET', KEYS[k]), told[o + 3], #writes
  local into = math.fmod(time, 60)
  local minute, current, previous = (time - into) / 60, 0, 0
  local _, last, known, spent, earlier, open, since
  if value and #value == 49 and byte(value) == 107 then
    _, last, known, spent, earlier, open, since = unpack(BREAKER, value)
    if last > time then  -- the clock was set back: this was spent just now, and it stays open as long as before
      known, since = minute, since - (last - time)
      writes[n + 1], writes[n + 2], writes[n + 3] =
        KEYS[k], pack(BREAKER, 107, time, minute, spent, earlier, open, since), reset_s ~= 0 and time + (reset_s + 86400)
    end
  end
  if known == minute then
    current, previous = spent, earlier
  elseif known == minute - 1 then
    previous = spent
  end
  local probe = open == 1
  local stays = probe and (reset_s == 0 or time < since + reset_s)
  if not stays then
    current = current + told[o + 4]
  end
  local rate = current
  if previous ~= 0 then
    rate = current + previous * (60 - into) / 60
  end
  if stays then
    result, passes = {true, rate, reset_s ~= 0 and since + reset_s - time or 0, ''}, false
  elseif rate >= told[o + 2] - DUST then
    -- Expires a day after its reset. Without a reset, only an operator closes it; it is the only value without a TTL.
    writes[n + 1], writes[n + 2], writes[n + 3] =
      KEYS[k], pack(BREAKER, 107, time, minute, current, previous, 1, time), reset_s ~= 0 and time + (reset_s + 86400)
    result, passes = {true, rate, reset_s, 'opened'}, false
  else
    writes[n + 1], writes[n + 2], writes[n + 3] =
      KEYS[k], pack(BREAKER, 107, time, minute, current, previous, 0, 0), (minute + 2) * 60
    result = {false, rate, 0, probe and 'closed' or ''}
  end
end
o = o + 5
