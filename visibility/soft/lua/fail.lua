-- A build failed: end the claim, try again later if a change is behind it. Args: lane, token, then per item: res, gen, delay, error, give_up.
-- Answers per item: failures so far, or 0 where the claim was lost.
local lane, token = ARGV[2], ARGV[3]
local out = {}
for i = 4, #ARGV, 5 do
  local res, gen, delay, err, give_up = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
  local state = base .. ':state:' .. res
  if redis.call('HGET', state, 'owner') ~= token then
    out[#out + 1] = 0
  else
    redis.call('ZREM', base .. ':claimed:' .. lane, res)
    redis.call('HDEL', state, 'owner')
    out[#out + 1] = redis.call('HINCRBY', state, 'tries', 1)
    redis.call('HSET', state, 'nb', text(now + delay), 'err', err)
    if give_up == '1' and field(state, 'gen') == gen then
      redis.call('HDEL', state, 'since', 'since2', 'forced', 'hot')
    elseif redis.call('HGET', state, 'hot') then
      redis.call('ZADD', base .. ':pending:' .. lane, 'NX', now + delay, res)
      redis.call('PEXPIRE', base .. ':pending:' .. lane, KEEP)
    end
    baton(res, token)
  end
end
return out
