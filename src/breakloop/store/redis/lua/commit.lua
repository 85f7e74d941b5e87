-- Units: seconds. KEYS: bl:{PROJECT}:KEY of each window, then of each operation that has one; a count may have three. ARGV: operations (msgpack), time or '', new value of each window.
-- One decision, see `Store.commit` in store/ops.py. Everything that can fail precedes the first write. There are no
-- functions, because each call would create them again. Returns msgpack {time, denied at or -1, result...}; a list if windows changed.
local told = decode(ARGV[1])  -- flat: number of windows, version and ttl_s of each, then the operations
local windows, newer = told[1], nil

for i = 1, windows do
  local head, version = call('GETRANGE', KEYS[i], 0, 8), 0
  if #head == 9 and byte(head) == 119 then
    version = unpack('<d', head, 2)
  end
  if version ~= told[i * 2] then
    newer = newer or {}
    newer[i] = version == 0 and '' or call('GET', KEYS[i])
  end
end
if newer then
  local reply = {string.format('%.17g', time)}
  for i = 1, windows do
    reply[i + 1] = newer[i] or false
  end
  return reply
end

local results, denied = {time, -1}, {}  -- denied: group -> true
local repeats, writes, charges = {}, {}, {}  -- flat: key, repeat / key, value, expires / group, key, value, expires
local flights  -- flat: group, repeat, number, free, hits; they start if the request passes
local DUST, o, last_o, k = 1e-9, windows * 2 + 2, #told, windows  -- positions in `told` and in KEYS

while o <= last_o do
  local kind, group, result, passes = told[o], told[o + 1], false, true
  if kind == 1 then
    -- kind, group, tracked, limit, window_s, sliding, denies, cooldown_s, growth, cooldown_max_s, at_once, free, traffic + 4 * land_calls
    k = k + 1
    local key, now, number = KEYS[k], time, 1
    local r = read_repeat(key)
    if r then
      r[LAST] = now
    else
      r = {'r', now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ''}
    end
    repeats[#repeats + 1] = key
    repeats[#repeats + 1] = r
    local tracked, free, traffic = told[o + 2], told[o + 11], told[o + 12]  -- 1: the next key is its traffic; 2: an opening
    local land_calls = false
    if traffic ~= 0 then
      if traffic > 3 then  -- the next key counts landed calls
        land_calls, traffic, k = (traffic - traffic % 4) / 4, traffic % 4, k + 1
      end
      if traffic ~= 0 then
        k = k + 1
      end
    end
    if tracked and r[FLIGHT_EXPIRES] > now then
      number = r[NUMBER] + 1
      if r[FREE] > 0 then
        r[FREE] = r[FREE] - 1
        result = {r[FLIGHT_HITS], -1}
      end
    end
    local window_s, cooldown_s, cooldown_max_s = told[o + 4], told[o + 7], told[o + 9]
    local cooled = cooldown_s ~= 0 and r[COOL_EXPIRES] > now
    if result then  -- the request joined a flight and is not counted
    elseif cooled and now < r[COOL_UNTIL] then
      r[COOL_HITS] = r[COOL_HITS] + 1
      result = {r[COOL_HITS], true, false, r[COOL_UNTIL] - now}
      passes = not told[o + 6]
    else
      if cooled then  -- a hit after the cooldown extends the entry
        r[COOL_EXPIRES] = now + cooldown_max_s
      end
      local limit, before, hits = told[o + 3], r[COUNT], nil
      if told[o + 5] then
        if r[COUNT_EXPIRES] <= now or type(before) == 'number' then
          before = ''
        end
        local stale = count_stale(before, now - window_s)
        local kept = #before / 8 - stale
        if kept > limit + 301 then
          stale, kept = stale + 1, kept - 1
        end
        r[COUNT] = sub(before, stale * 8 + 1) .. pack('<d', now)
        before, hits = #before / 8, kept + 1
      else
        if r[COUNT_EXPIRES] <= now or type(before) == 'string' then
          before = 0
        end
        hits = before + 1
        r[COUNT] = hits
      end
      r[COUNT_EXPIRES] = now + window_s
      local mixed = false
      if traffic ~= 0 then
        local mark, marks, known, n = sub(key, -8), '', call('GET', KEYS[k]), #writes
        if known and #known > 9 and byte(known) == 116 and unpack('<d', known, 2) > now then
          marks = sub(known, 10)
        end
        marks = sub(marks .. mark, -144)
        writes[n + 1], writes[n + 2], writes[n + 3] = KEYS[k], pack('<Bd', 116, now + window_s) .. marks, now + window_s
        if traffic == 2 and hits > limit then  -- as `is_mixed`: not all in a row, and more than a third of all differ
          local row, different, seen = limit < 18 and limit + 1 or 18, 0, {}
          for at = 1, #marks, 8 do
            local one = sub(marks, at, at + 7)
            if not seen[one] then
              seen[one], different = true, different + 1
            end
          end
          mixed = different * 24 > #marks and sub(marks, -8 * row) ~= string.rep(mark, row)
        end
      end
      local landed = false
      if land_calls and not mixed and (hits > limit or (told[o + 10] and not cooled)) then
        local at = traffic == 0 and k or k - 1
        local known, calls, n = call('GET', KEYS[at]), 1, #writes
        if known and #known == 17 and byte(known) == 108 and unpack('<d', known, 2) > now then
          calls = unpack('<d', known, 10) + 1
        end
        if calls <= land_calls then
          landed = calls
          writes[n + 1], writes[n + 2], writes[n + 3] = KEYS[at], pack(LANDED, 108, now + 3600, calls), now + 3600
        end
      end
      if hits <= limit and (cooled or not told[o + 10]) then
        result = hits
        if tracked and free ~= 0 then
          result = {hits, number}
          flights = flights or {}
          local n = #flights
          flights[n + 1], flights[n + 2], flights[n + 3], flights[n + 4], flights[n + 5] = group, r, number, free, hits
        end
      elseif mixed then
        result = {hits, true, before <= limit, 0, true, 0}
      elseif landed then
        result = {hits, true, before <= limit, 0, false, landed}
      elseif cooldown_s == 0 then
        result, passes = {hits, true, before <= limit, window_s}, not told[o + 6]
      else
        local seconds = cooldown_s
        if cooled then
          seconds = r[COOL_S] * told[o + 8]
          if seconds > cooldown_max_s then
            seconds = cooldown_max_s
          end
        end
        r[COOL_UNTIL] = now + seconds
        r[COOL_EXPIRES], r[COOL_HITS], r[COOL_S], r[DETECTED] = r[COOL_UNTIL] + cooldown_max_s, hits, seconds, now
        r[COUNT_EXPIRES], r[COUNT], r[FLIGHT_EXPIRES] = 0, 0, 0
        result, passes = {hits, true, true, seconds}, not told[o + 6]
      end
    end
    o = o + 13
  -- LIMITS
  else
    passes = kind ~= 5  -- 5 denies, 6 only records
    o = o + 2
  end
  local n = #results
  results[n + 1] = result
  if not passes and not denied[group] then
    denied[group] = true
    if group == 0 then
      results[2] = n - 2
    end
  end
end

local passed = not denied[0]
if flights and passed then
  for i = 1, #flights, 5 do
    if not denied[flights[i]] then
      local r = flights[i + 1]
      r[FLIGHT_EXPIRES], r[STARTED], r[NUMBER], r[FREE], r[FLIGHT_HITS] =
        r[LAST] + 1, r[LAST], flights[i + 2], flights[i + 3], flights[i + 4]
    end
  end
end
for i = 1, #repeats, 2 do
  put_repeat(repeats[i], repeats[i + 1])
end
for i = 1, #writes, 3 do
  put(writes[i], writes[i + 1], writes[i + 2])
end
if passed then
  for i = 1, #charges, 4 do
    if not denied[charges[i]] then
      put(charges[i + 1], charges[i + 2], charges[i + 3])
    end
  end
end
for i = 1, windows do
  if told[i * 2 + 1] then  -- otherwise only its version was checked
    put(KEYS[i], ARGV[i + 2], time + told[i * 2 + 1])
  end
end
return encode(results)
