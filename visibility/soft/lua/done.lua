-- End claims. Args: lane, token, then per item: res, gen, epoch, window, how. how: trust (stored, marks unmoved), keep (stored), drop (marked, not built), back (given back unbuilt).
-- Answers wake, then per item 1 (clean), 2 (moved meanwhile or given back: pending again), 0 (the claim was lost).
local lane, token = ARGV[2], ARGV[3]
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane
local out, again = {0}, false
for i = 4, #ARGV, 5 do
  local res, gen, epoch, window, how = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local state = base .. ':state:' .. res
  local seen = redis.call('HMGET', state, 'owner', 'gen', 'epoch', 'since2', 'built', 'ver')
  if seen[1] ~= token then
    out[#out + 1] = 0
  else
    redis.call('ZREM', claimed, res)
    redis.call('HDEL', state, 'owner')
    if how ~= 'back' and (seen[2] or '0') == gen then
      redis.call('HDEL', state, 'since', 'since2', 'forced', 'hot', 'tries', 'nb', 'err')
      local till = visible_until(res)
      if how == 'trust' and (seen[3] or '0') == epoch and till > now then
        redis.call('SET', base .. ':fresh:' .. res, seen[6], 'PX', till - now)
      end
      out[#out + 1] = 1
    else
      if how ~= 'back' and seen[4] then redis.call('HSET', state, 'since', seen[4]) end
      redis.call('HDEL', state, 'since2')
      redis.call('ZADD', pending, 'NX', math.max(now, tonumber(seen[5] or '0') + window), res)
      redis.call('PEXPIRE', pending, KEEP)
      again = true
      out[#out + 1] = 2
    end
    baton(res, token)
  end
end
if again then out[1] = wake(lane) end
return out
