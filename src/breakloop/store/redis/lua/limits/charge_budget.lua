-- kind, group, budget (high, low), cost (high, low), ends
k = k + 1
if not denied[group] then
  local value, high, low, ends = call('GET', KEYS[k]), told[o + 4], told[o + 5], told[o + 6]
  if value and #value == 25 and byte(value) == 97 then
    local _, expires, used_high, used_low = unpack(ACCOUNT, value)
    -- Only a caller whose clock is behind sends a period that has ended. Its stored amount still counts.
    if not (expires - 3600 <= time and time < ends) then
      high, low = high + used_high, low + used_low
      if low >= 1073741824 then
        high, low = high + 1, low - 1073741824
      end
    end
  end
  if high < 8388608 and high > -8388608 then
    result = high * 1073741824 + low
  else
    result = {high, low}
  end
  passes = high < told[o + 2] or (high == told[o + 2] and low <= told[o + 3])
  if passes then
    local n, expires = #charges, (ends > time and ends or time) + 3600
    charges[n + 1], charges[n + 2], charges[n + 3], charges[n + 4] =
      group, KEYS[k], pack(ACCOUNT, 97, expires, high, low), expires
  end
end
o = o + 7
