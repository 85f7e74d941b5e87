-- kind, group, rate, burst, cost
k = k + 1
if not denied[group] then
  local value, now, rate, burst = call('GET', KEYS[k]), time, told[o + 2], told[o + 3]
  result = burst - told[o + 4]
  if value and #value == 25 and byte(value) == 98 then
    local _, expires, tokens, last = unpack(BUCKET, value)
    if last > now then
      now = last
    end
    if expires > now then
      tokens = tokens + (now - last) * rate
      result = (tokens < burst and tokens or burst) - told[o + 4]
      if result < 0 and result >= -DUST then
        result = 0
      end
    end
  end
  passes = result >= 0
  if passes then
    local n, expires = #charges, now + (burst - result) / rate
    charges[n + 1], charges[n + 2], charges[n + 3], charges[n + 4] =
      group, KEYS[k], pack(BUCKET, 98, expires, result, now), expires
  end
end
o = o + 5
