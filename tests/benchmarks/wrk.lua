-- Requests for wrk, made before it starts: FILE holds them, each with a NUL after it, and FROM is the first to be sent.
local requests, count, next_one = {}, 0, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for request in file:read("*a"):gmatch("[^%z]+") do
    count = count + 1
    requests[count] = request
  end
  file:close()
  next_one = tonumber(args[2]) % count
end

function request()
  next_one = next_one % count + 1
  return requests[next_one]
end

function done(summary, latency, _)
  local errors = summary.errors
  local broken = errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format(
    '{"answers": %d, "refused": %d, "broken": %d, "seconds": %f, "p99": %f}\n',
    summary.requests, errors.status, broken, summary.duration / 1e6, latency:percentile(99) / 1e6
  ))
end
