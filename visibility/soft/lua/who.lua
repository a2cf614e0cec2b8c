-- Presence of users. Args: limit of sessions a user, then users. Answers per user: last seen end ms or '', seen ms or '', then
-- a list of sid, end, node, state, since.
local limit, out = tonumber(ARGV[2]), {now}
for i = 3, #ARGV do
  local user = ARGV[i]
  local rows = {}
  local live = redis.call('ZREVRANGEBYSCORE', base .. ':presence:' .. user, '+inf', '(' .. now, 'WITHSCORES', 'LIMIT', 0, limit)
  for j = 1, #live, 2 do
    local seen = redis.call('HMGET', base .. ':session:' .. live[j], 'node', 'state', 'since')
    rows[#rows + 1] = {live[j], live[j + 1], seen[1] or '', seen[2] or 'visible', seen[3] or ''}
  end
  out[#out + 1] = {redis.call('ZSCORE', base .. ':online', user) or '', redis.call('GET', base .. ':seen:' .. user) or '', rows}
end
return out
