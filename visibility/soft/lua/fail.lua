-- A build failed: end the claim, try again later if a change is behind it. Args: lane, token, then per item: res, gen, delay, error,
-- give_up. Answers per item: failures so far, or 0 where the claim was lost.
local lane, token = ARGV[2], ARGV[3]
local out = {}
for i = 4, #ARGV, 5 do
  local res, gen, delay, err, give_up = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
  local state = base .. ':state:' .. res
  local seen = redis.call('HMGET', state, 'owner', 'gen', 'since2', 'hot')
  if seen[1] ~= token then
    out[#out + 1] = 0
  else
    redis.call('ZREM', base .. ':claimed:' .. lane, res)
    redis.call('HDEL', state, 'owner', 'since2', 'window', 'lost')
    out[#out + 1] = redis.call('HINCRBY', state, 'tries', 1)
    redis.call('HSET', state, 'nb', text(now + delay), 'err', err)
    if give_up == '1' and (seen[2] or '0') == gen then
      redis.call('HDEL', state, 'since', 'forced', 'hot')
    elseif seen[4] or (seen[2] or '0') ~= gen then
      redis.call('HSET', state, 'hot', '1')
      if seen[3] then redis.call('HSETNX', state, 'since', seen[3]) end
      redis.call('ZADD', base .. ':pending:' .. lane, 'NX', now + delay, res)
      redis.call('PEXPIRE', base .. ':pending:' .. lane, ARGV[1])
    else
      redis.call('HDEL', state, 'forced')
    end
    baton(res, token)
  end
end
return out
