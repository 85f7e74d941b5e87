-- One request after another: `before`, a number that is never used twice, `after`. All three come as arguments, as does
-- the first number; with "same" the number stays what it is.
local ffi = require("ffi")
local text, place, number, step

local function read(path)
  local file = assert(io.open(path, "rb"))
  local content = file:read("*a")
  file:close()
  return content
end

function init(args)
  local before, after = read(args[1]), read(args[2])
  number = tonumber(args[3])
  step = args[4] == "same" and 0 or 1
  text = before .. number .. after
  place = ffi.cast("char *", text) + #before
end

-- The number is written into the one string there is: wrk copies it at once, and making a new string of 600 KB for every
-- request would cost more than what is measured.
function request()
  number = number + step
  ffi.copy(place, tostring(number), 9)
  return text
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    "RESULT requests=%d duration_us=%d refused=%d broken=%d p50_us=%d p99_us=%d\n",
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
