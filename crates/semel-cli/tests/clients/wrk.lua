-- The same fifty keys over and over from every connection. Counts what is neither an answer nor "in progress".
local threads, n = {}, 0

function setup(thread)
  table.insert(threads, thread)
  thread:set("strange", 0)
  thread:set("answered", 0)
  thread:set("in_progress", 0)
end

function request()
  n = n + 1
  local headers = { ["Idempotency-Key"] = "load-" .. (n % 50), ["Content-Type"] = "application/json" }
  return wrk.format("POST", "/v1/payment_intents", headers, '{"amount": 4200}')
end

function response(status, headers, body)
  local problem
  for name, value in pairs(headers) do
    if name:lower() == "idempotency-problem" then problem = value end
  end
  if status >= 200 and status < 300 then
    answered = answered + 1
  elseif status == 409 and problem == "IDEMPOTENCY_REQUEST_IN_PROGRESS" then
    in_progress = in_progress + 1
  else
    strange = strange + 1
  end
end

function done(summary)
  local sums = { answered = 0, in_progress = 0, strange = 0 }
  for _, thread in ipairs(threads) do
    for name in pairs(sums) do sums[name] = sums[name] + thread:get(name) end
  end
  local errors = summary.errors
  print(("semel answered=%d in_progress=%d strange=%d broken=%d"):format(
    sums.answered, sums.in_progress, sums.strange, errors.connect + errors.read + errors.write + errors.timeout))
end
