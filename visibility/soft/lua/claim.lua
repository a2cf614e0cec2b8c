-- Claim due resources, or one resource by name. Args: lane, limit, lease, res or ''.
-- Generation and epoch are read here, before any source is (rules 5 and 3).
-- Answers now, token, due left, ms until the next is due (-1: none), then rows; or for a named one {now, 'busy', owner} / {now, 'later', ms, error}.
local lane, limit, lease, named = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane

local function unshare(state, res)
  local tenant = redis.call('HGET', state, 'tenant')
  if tenant and tenant ~= '' then redis.call('ZREM', base .. ':tenant:' .. lane .. ':' .. tenant, res) end
end

local due = {}
if named ~= '' then
  local ends = redis.call('ZSCORE', claimed, named)
  local seen = redis.call('HMGET', base .. ':state:' .. named, 'owner', 'nb', 'err')
  if ends and tonumber(ends) > now then
    redis.call('HSET', base .. ':state:' .. named, 'waiting', '1')
    return {now, 'busy', seen[1] or '0'}
  end
  if seen[2] and tonumber(seen[2]) > now then return {now, 'later', tonumber(seen[2]) - now, seen[3] or ''} end
  due = {named}
else
  redis.call('DEL', base .. ':wake:' .. lane)
  for _, res in ipairs(redis.call('ZRANGEBYSCORE', claimed, '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('ZREM', claimed, res)
    redis.call('HDEL', base .. ':state:' .. res, 'owner')
    redis.call('ZADD', pending, 'NX', now, res)
  end
  due = redis.call('ZRANGEBYSCORE', pending, '-inf', now, 'LIMIT', 0, limit)
end

local token = tick()
local rows = {}
for _, res in ipairs(due) do
  local state = base .. ':state:' .. res
  local was_pending = redis.call('ZREM', pending, res)
  redis.call('ZADD', claimed, now + lease, res)
  redis.call('HSET', state, 'owner', token, 'built', text(now))
  redis.call('PEXPIRE', state, KEEP)
  unshare(state, res)
  local seen = redis.call('HMGET', state, 'gen', 'epoch', 'since', 'forced', 'tries', 'ev', 'ver')
  rows[#rows + 1] = {
    res, seen[1] or '0', seen[2] or '0', seen[3] or '0', seen[4] or '0', seen[5] or '0', seen[6] or '', seen[7] or '0',
    visible_until(res) > now and 1 or 0, was_pending,
  }
end
if #rows > 0 then redis.call('PEXPIRE', claimed, KEEP) end
local next_due = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
local wait = next_due[2] and math.max(0, tonumber(next_due[2]) - now) or -1
return {now, token, redis.call('ZCOUNT', pending, '-inf', now), wait, rows}
