-- Asks breakloop before a request is forwarded: `http-request lua.breakloop http://127.0.0.1:8787/v1/decision`.
-- An allowed request is forwarded. A denied one gets the status, headers and body of the denial.
-- Without a decision it is forwarded, too, but `txn.breakloop_answered` is not set, so that the configuration can deny it.

-- Timeout in ms. A throttled request waits for up to 30 s; if no policy throttles, 1000 is enough.
local TIMEOUT_MS = 35000

-- Fields that are not passed on: those of the connection, and those that only the gateway may set.
local DROPPED = {
  ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["forwarded"] = true, ["host"] = true,
  ["keep-alive"] = true, ["te"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
  ["x-original-method"] = true, ["x-original-uri"] = true, ["x-original-host"] = true,
  ["x-original-content-length"] = true, ["x-forwarded-for"] = true, ["x-forwarded-host"] = true,
  ["x-forwarded-method"] = true, ["x-forwarded-uri"] = true,
  ["x-country-code"] = true, ["x-asn"] = true, ["x-asn-type"] = true, ["x-tor-exit"] = true,
}

-- Headers of a denial that the client gets.
local DENIAL_HEADERS = { "^x%-breakloop%-", "^ratelimit", "^retry%-after$", "^x%-should%-retry$", "^content%-type$" }

local function fields_of(txn, body)
  local fields = {}
  for name, values in pairs(txn.http:req_get_headers()) do
    local canonical = name:lower():gsub("_", "-")
    if not DROPPED[canonical] then
      fields[name] = {}
      for _, value in pairs(values) do
        table.insert(fields[name], value)
      end
    end
  end
  fields["host"] = { txn.f:req_hdr("host") or "" }
  fields["x-original-method"] = { txn.f:method() }
  fields["x-original-uri"] = { txn.f:pathq() }
  fields["x-original-host"] = { txn.f:req_hdr("host") or "" }
  fields["x-forwarded-for"] = { txn.f:src() }
  if body == "" then
    -- A body that was not buffered completely is not sent, but breakloop must know that there is one.
    local chunked = txn.f:req_hdr("transfer-encoding")
    fields["x-original-content-length"] = { chunked and "unknown" or txn.f:req_hdr("content-length") or "0" }
  end
  return fields
end

-- Returns the body if it is complete (`option http-buffer-request`, up to tune.bufsize), else "".
local function body_of(txn)
  local body = txn.f:req_body() or ""
  local size = txn.f:req_body_size() or 0
  return (#body == tonumber(size)) and body or ""
end

local function deny(txn, answer)
  local reply = txn:reply({ status = answer.status })
  for name, values in pairs(answer.headers) do
    for _, pattern in ipairs(DENIAL_HEADERS) do
      if name:lower():find(pattern) then
        for _, value in pairs(values) do
          reply:add_header(name, value)
        end
        break
      end
    end
  end
  reply:set_body(answer.body or "")
  txn:done(reply)
end

core.register_action("breakloop", { "http-req" }, function(txn, url)
  local body = body_of(txn)
  local client = core.httpclient()
  local question = { url = url, headers = fields_of(txn, body), timeout = TIMEOUT_MS }
  local answered, answer
  if body == "" then
    answered, answer = pcall(client.get, client, question)
  else
    question.body = body
    answered, answer = pcall(client.post, client, question)
  end
  if answered and answer and answer.status == 200 then
    txn:set_var("txn.breakloop_answered", true)
    return
  end
  if answered and answer and answer.status >= 400 and answer.status ~= 500 and answer.headers
    and (answer.status < 500 or answer.headers["x-breakloop-reason"]) then
    deny(txn, answer)
  end
end, 1)
