-- Units: seconds (doubles); money in whole units as two parts, high * 2^30 + low. KEYS: bl:{PROJECT}:KEY, one string each, with a TTL (PX).
-- Prepended to every other script: the time, and the layout of each kind of value. A value with another layout is ignored.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local encode, decode, byte, sub = cmsgpack.pack, cmsgpack.unpack, string.byte, string.sub

-- The time is that of Redis, or ARGV[2] in tests. A test's time does not advance, so its keys live one day longer.
local time, spare_ms = tonumber(ARGV[2]), 86400000
if not time then
  local told = call('TIME')
  time, spare_ms = told[1] + told[2] / 1000000, 0
end

-- Fixed layouts: kind (b, a, l, k), then doubles. A reader checks length and kind.
local BUCKET = '<Bddd'  -- expires, tokens, last
local ACCOUNT = '<Bddd'  -- expires, high, low
local LANDED = '<Bdd'  -- expires, calls
local BREAKER = '<Bdddddd'  -- last, minute, its spend, spend of the previous minute, open (1) or not (0), opened at
-- The traffic of a sender is t, expires, then the last 8 characters of the keys of its last 18 requests.
-- A window is w, its version as a double, then its data. It has no stored expiry, because Redis deletes it.

-- A repeat is a msgpack array: 'r', then these fields by index. An expiry of 0 means none.
-- COUNT is a number, or for a sliding window the packed times of its hits. BACK are the times at which counts were undone.
local LAST, COUNT_EXPIRES, COUNT = 2, 3, 4
local COOL_EXPIRES, COOL_UNTIL, COOL_HITS, COOL_S, DETECTED = 5, 6, 7, 8, 9
local FLIGHT_EXPIRES, STARTED, NUMBER, FREE, FLIGHT_HITS = 10, 11, 12, 13, 14
local BACK_EXPIRES, BACK = 15, 16

-- If the clock was set back since the last change, all times move with it: what remains, remains as long as it was.
local function read_repeat(key)
  local value = call('GET', key)
  if value then
    local good, r = pcall(decode, value)
    if good and type(r) == 'table' and #r == 16 and r[1] == 'r' then
      local ahead = r[LAST] - time
      if ahead > 0 then
        local fields = {
          LAST, COUNT_EXPIRES, COOL_EXPIRES, COOL_UNTIL, DETECTED, FLIGHT_EXPIRES, STARTED, BACK_EXPIRES, COUNT, BACK,
        }
        for i = 1, 10 do
          local field = fields[i]
          if type(r[field]) == 'string' then
            r[field] = string.gsub(r[field], '........', function(at)
              return pack('<d', unpack('<d', at) - ahead)
            end)
          elseif i < 9 and r[field] ~= 0 then
            r[field] = r[field] - ahead
          end
        end
      end
      return r
    end
  end
  return nil
end

-- Returns how many of these packed, sorted times are not later than `until_s`.
local function count_stale(times, until_s)
  local stale, all = 0, #times / 8
  while stale < all and unpack('<d', times, stale * 8 + 1) <= until_s do
    stale = stale + 1
  end
  return stale
end

-- An expiry of false means none. Milliseconds as text, because a number might get an exponent; at most 2800 years.
local function put(key, value, expires)
  if not expires then
    call('SET', key, value)
    return
  end
  local ms = math.ceil((expires - time) * 1000)
  if ms < 1 then
    ms = 1
  elseif not (ms < 9e13) then
    ms = 9e13
  end
  call('SET', key, value, 'PX', (ms + spare_ms) .. '')
end

local function put_repeat(key, repeated)
  local latest = repeated[COUNT_EXPIRES]
  if repeated[COOL_EXPIRES] > latest then
    latest = repeated[COOL_EXPIRES]
  end
  if repeated[FLIGHT_EXPIRES] > latest then
    latest = repeated[FLIGHT_EXPIRES]
  end
  if repeated[BACK_EXPIRES] > latest then
    latest = repeated[BACK_EXPIRES]
  end
  put(key, encode(repeated), latest)
end

