-- Store snapshots. Args: lane, token, then per item: res, ttl, soft_until, value. Answers 1, or 0 where refused (rule 7: owner and fence).
local lane, token = ARGV[2], ARGV[3]
local out, names = {}, {}
for i = 4, #ARGV, 4 do names[#names + 1] = ARGV[i] end
local claims = scores(base .. ':claimed:' .. lane, names)
for i = 4, #ARGV, 4 do
  local res, ttl, soft, value = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local state = base .. ':state:' .. res
  local ends = claims[i / 4]
  local seen = redis.call('HMGET', state, 'owner', 'ver')
  local stored = 0
  local owns = seen[1] == token and ends and tonumber(ends) > now
  if owns and tonumber(seen[2] or '0') >= tonumber(token) then
    -- The clock fell behind what it once gave (a failover): the next token is above it.
    if tonumber(seen[2]) > tonumber(tick()) then redis.call('SET', base .. ':seq', seen[2], 'PX', ARGV[1]) end
  elseif owns then
    redis.call('SET', base .. ':snap:' .. res, value, 'PX', ttl)
    -- The claim has renewed the lifetime of the state.
    redis.call('HSET', state, 'ver', token, 'soft', soft)
    stored = 1
  end
  out[#out + 1] = stored
end
return out
