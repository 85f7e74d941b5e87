-- Units: seconds, tokens; money in whole units (high, low). KEYS: bl:{PROJECT}:KEY of the value that each operation corrects; a key may occur twice. ARGV: msgpack {2, rate, burst, lowest, amount | 3, high, low, known, ends, ...}, time or ''.
-- Corrects earlier charges. A bucket may become negative, down to its lowest value, an account may not. A missing account is created, with what is known of it, only if its period ends later.
local told = decode(ARGV[1])

local function correct_bucket(key, rate, burst, lowest, amount)
  local value, tokens, live = call('GET', key), burst, false
  if value and #value == 25 and byte(value) == 98 then
    local _, expires, known, last = unpack(BUCKET, value)
    if last > time then  -- the clock was set back: it refills from now on
      last = time
    end
    -- An expired bucket counts as full, not as missing.
    live = expires > time
    if live then
      tokens = known + (time - last) * rate
      if tokens > burst then
        tokens = burst
      end
    end
  end
  local left = tokens - amount
  if left > burst then
    left = burst
  elseif left < lowest then
    left = lowest
  end
  if live or left < burst then
    local expires = time + (burst - left) / rate
    put(key, pack(BUCKET, 98, expires, left, time), expires)
  end
end

local function correct_account(key, high, low, known, ends)
  local value, _, expires, used_high, used_low = call('GET', key), nil, 0, 0, 0
  if value and #value == 25 and byte(value) == 97 then
    _, expires, used_high, used_low = unpack(ACCOUNT, value)
  end
  if expires <= time then
    if ends <= time then
      return
    end
    expires, used_low = ends + 3600, math.fmod(known, 1073741824)
    used_high = (known - used_low) / 1073741824
  end
  high, low = high + used_high, low + used_low
  if low >= 1073741824 then
    high, low = high + 1, low - 1073741824
  end
  if high < 0 then
    high, low = 0, 0
  end
  put(key, pack(ACCOUNT, 97, expires, high, low), expires)
end

for i = 1, #KEYS do
  local o = i * 5 - 4
  if told[o] == 2 then
    correct_bucket(KEYS[i], told[o + 1], told[o + 2], told[o + 3], told[o + 4])
  else
    correct_account(KEYS[i], told[o + 1], told[o + 2], told[o + 3], told[o + 4])
  end
end
return 0
