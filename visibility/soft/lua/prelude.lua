-- Shared by all scripts: KEYS[1] is the shard's base; ARGV[1] the lifetime of bookkeeping keys in ms.
-- Time is the server's own, so that no worker's clock decides about a lease.
local base = KEYS[1]
local KEEP = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = math.floor(now_us / 1000)

local function text(n) return string.format('%.0f', n) end

-- A hybrid clock: max(last + 1, microseconds). Grows across a flush, fits in 53 bits. `ticks` takes so many at once, answers the first.
local function ticks(count)
  local name = base .. ':seq'
  local last = tonumber(redis.call('GET', name) or '0')
  local n = now_us
  if last >= n then n = last + 1 end
  redis.call('SET', name, text(n + count - 1), 'PX', ARGV[1])
  return n
end

local function tick() return text(ticks(1)) end

-- One command for a long list, in slices that Lua can unpack; `scores` also gathers what it answers.
local function many(command, name, list)
  for from = 1, #list, 2000 do redis.call(command, name, unpack(list, from, math.min(from + 1999, #list))) end
end

local function scores(name, list)
  local out = {}
  for from = 1, #list, 2000 do
    for _, score in ipairs(redis.call('ZMSCORE', name, unpack(list, from, math.min(from + 1999, #list)))) do out[#out + 1] = score end
  end
  return out
end

local function split(res)
  local colon = string.find(res, ':', 1, true)
  return string.sub(res, 1, colon - 1), string.sub(res, colon + 1)
end

local function visible_until(res)
  local typ, key = split(res)
  local score = redis.call('ZSCORE', base .. ':visible:' .. typ, key)
  return score and tonumber(score) or 0
end

-- The same for a list, by one command a type.
local function visible_among(list)
  local out, types = {}, {}
  for n, res in ipairs(list) do
    local typ, key = split(res)
    local some = types[typ]
    if not some then
      some = {{}, {}}
      types[typ] = some
    end
    some[1][#some[1] + 1] = key
    some[2][#some[2] + 1] = n
  end
  for typ, some in pairs(types) do
    for k, score in ipairs(scores(base .. ':visible:' .. typ, some[1])) do out[some[2][k]] = score and tonumber(score) or 0 end
  end
  return out
end

local function field(state, name) return redis.call('HGET', state, name) or '0' end

local function wake(lane)
  if redis.call('EXISTS', base .. ':lingering:' .. lane) == 1 then
    local bell = base .. ':bell:' .. lane
    if redis.call('LLEN', bell) == 0 then
      redis.call('RPUSH', bell, '1')
      redis.call('PEXPIRE', bell, 5000)
    end
    return 0
  end
  if redis.call('SET', base .. ':wake:' .. lane, '1', 'NX', 'PX', 5000) then return 1 end
  return 0
end

-- Wake those who wait for the build under this token: the list stays, each waiter rotates it.
local function baton(res, token)
  if redis.call('HDEL', base .. ':state:' .. res, 'waiting') == 0 then return end
  local name = base .. ':baton:' .. res .. ':' .. token
  redis.call('RPUSH', name, '1')
  redis.call('PEXPIRE', name, 15000)
end

-- A claim ends and nothing moved since it began: the resource is at rest, and vouched for until `till` (0: not at all).
local function at_rest(res, version, till)
  local state = base .. ':state:' .. res
  redis.call('HDEL', state, 'owner', 'since2', 'window', 'since', 'tries', 'nb', 'err', 'lost', 'forced', 'hot')
  if till > now then redis.call('SET', base .. ':fresh:' .. res, version, 'PX', text(till - now)) end
end
