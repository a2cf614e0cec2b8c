-- End claims. Args: lane, token, then per item: res, gen, epoch, window, how.
-- how: trust (stored, marks unmoved), keep (stored), drop (marked, not built), back (given back unbuilt).
-- Answers wake, then per item 1 (clean), 2 (moved meanwhile or given back: pending again), 0 (the claim was lost).
-- What is given back is pending again only if a change or a request is behind it; a reader's own build is not.
local lane, token = ARGV[2], ARGV[3]
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane
local out, over, again, soon = {0}, {}, false, false
for i = 4, #ARGV, 5 do
  local res, gen, epoch, window, how = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local state = base .. ':state:' .. res
  local seen = redis.call('HMGET', state, 'owner', 'gen', 'epoch', 'since2', 'built', 'ver', 'hot', 'forced', 'window', 'waiting')
  if seen[1] ~= token then
    out[#out + 1] = 0
  else
    over[#over + 1] = res
    local clean = how ~= 'back' and (seen[2] or '0') == gen
    if clean then
      local vouched = how == 'trust' and seen[6] == token and (seen[3] or '0') == epoch
      at_rest(res, token, vouched and visible_until(res) or 0)
    elseif how == 'trust' or how == 'keep' then
      redis.call('HDEL', state, 'owner', 'since2', 'window', 'since', 'tries', 'nb', 'err', 'lost')
    elseif how == 'drop' then
      redis.call('HDEL', state, 'owner', 'since2', 'window', 'since')
    else
      redis.call('HDEL', state, 'owner', 'since2', 'window')
    end
    if clean or (how == 'back' and not seen[7] and not seen[8]) then
      out[#out + 1] = 1
    else
      if seen[4] then redis.call('HSETNX', state, 'since', seen[4]) end
      if how ~= 'back' then redis.call('HSET', state, 'hot', '1') end
      local due = math.max(now, tonumber(seen[5] or '0') + (tonumber(seen[9]) or window))
      redis.call('ZADD', pending, 'NX', due, res)
      again = true
      if due < now + 2000 then soon = true end
      out[#out + 1] = 2
    end
    if seen[10] then baton(res, token) end
  end
end
many('ZREM', claimed, over)
if again then redis.call('PEXPIRE', pending, ARGV[1]) end
if soon then out[1] = wake(lane) end
return out
