-- kind, group, rate, burst, cost
k = k + 1
if not denied[group] then
  local value, rate, burst = call('GET', KEYS[k]), told[o + 2], told[o + 3]
  result = burst - told[o + 4]
  if value and #value == 25 and byte(value) == 98 then
    local _, expires, tokens, last = unpack(BUCKET, value)
    if last > time then  -- the clock was set back: it refills from now on, also if this request is denied
      local n = #writes
      expires, last = expires - (last - time), time
      writes[n + 1], writes[n + 2], writes[n + 3] = KEYS[k], pack(BUCKET, 98, expires, tokens, last), expires
    end
    if expires > time then
      tokens = tokens + (time - last) * rate
      result = (tokens < burst and tokens or burst) - told[o + 4]
      if result < 0 and result >= -DUST then
        result = 0
      end
    end
  end
  passes = result >= 0
  if passes then
    local n, expires = #charges, time + (burst - result) / rate
    charges[n + 1], charges[n + 2], charges[n + 3], charges[n + 4] =
      group, KEYS[k], pack(BUCKET, 98, expires, result, time), expires
  end
end
o = o + 5
