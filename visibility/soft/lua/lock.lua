-- An owner-token lock with a fencing number. Args: what (acquire, extend, release), name, owner, ms. Answers the fence, or 0.
-- `locks` lists them by their end, for people. What ended without a release stays in it for ten minutes: its holder died or overran.
local what, name, owner, ms = ARGV[2], base .. ':lock:' .. ARGV[3], ARGV[4], tonumber(ARGV[5])
local index = base .. ':locks'
local held = redis.call('GET', name)

local function list()
  redis.call('ZADD', index, text(now + ms), ARGV[3])
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now - 600000)
  redis.call('ZREMRANGEBYRANK', index, 0, -1001)
  local last = redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')
  redis.call('PEXPIRE', index, text(tonumber(last[2]) - now + 600000))
end

if what == 'acquire' then
  if held then return '0' end
  local fence = tick()
  redis.call('SET', name, owner .. '|' .. fence, 'PX', ms)
  list()
  return fence
end
if not held or string.sub(held, 1, #owner + 1) ~= owner .. '|' then return '0' end
if what == 'extend' then
  redis.call('PEXPIRE', name, ms)
  list()
else
  redis.call('DEL', name)
  redis.call('ZREM', index, ARGV[3])
end
return string.sub(held, #owner + 2)
