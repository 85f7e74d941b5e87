-- Units: seconds. KEYS: bl:{PROJECT}:KEY of the count of each operation; a key may occur twice. ARGV: msgpack {failed, at, flight, window_s, sliding, retry_free, ...}, time or ''.
-- Ends requests: ends their flights and undoes the counts of failed ones. Returns how many counts were undone.
local told = decode(ARGV[1])
local failed, taken_back = told[1], 0

-- Returns the index of this time among packed ones, or nil.
local function find(times, at)
  local wanted, from = pack('<d', at), 1
  while true do
    local found = string.find(times, wanted, from, true)
    if not found or found % 8 == 1 then
      return found
    end
    from = found + 1
  end
end

local function take_back(r, now, at, window_s, sliding, retry_free)
  local hits = r[COUNT]
  if r[COUNT_EXPIRES] <= now or at + window_s <= now or type(hits) ~= (sliding and 'string' or 'number') then
    return false
  end
  local found = sliding and find(hits, at)
  if (sliding and not found) or (r[COOL_EXPIRES] > now and at <= r[DETECTED]) then
    return false
  end
  local times = r[BACK_EXPIRES] > now and r[BACK] or ''
  times = sub(times, count_stale(times, now - window_s) * 8 + 1)
  if #times / 8 >= retry_free then
    return false
  end
  r[BACK_EXPIRES], r[BACK] = now + window_s, times .. pack('<d', now)
  r[COUNT] = sliding and sub(hits, 1, found - 1) .. sub(hits, found + 8) or hits - 1
  return true
end

for i = 1, #KEYS do
  local o, r = i * 5 - 3, read_repeat(KEYS[i])
  if r then
    local at, flight, changed = told[o], told[o + 1], false
    if flight ~= 0 and r[STARTED] == at and r[NUMBER] == flight then
      r[FREE], r[FLIGHT_HITS], changed = 0, 0, true
    end
    if failed and take_back(r, time, at, told[o + 2], told[o + 3], told[o + 4]) then
      taken_back, changed = taken_back + 1, true
    end
    if changed then
      r[LAST] = time
      put_repeat(KEYS[i], r)
    end
  end
end
return taken_back
