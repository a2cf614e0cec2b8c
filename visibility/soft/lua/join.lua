-- Make or update sessions, whole. Args: ms, node, limit, then groups: user, sid, state, n, resource × n. The limit on sessions of a
-- user counts for new ones; '-' is everybody who is not logged in. Answers per session: 0 refused, 1 known, 2 new; then crossed:
-- 0 no, 1 came online, 2 an unannounced end came before that.
local ms, node, limit = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local ends, out, i = now + ms, {}, 5
while i <= #ARGV do
  local user, sid, state, n = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local presence, hash, set = base .. ':presence:' .. user, base .. ':session:' .. sid, base .. ':interests:' .. sid
  local status = redis.call('EXISTS', hash) == 1 and 1 or 2
  if status == 2 and limit > 0 and user ~= '-' and redis.call('ZCOUNT', presence, '(' .. now, '+inf') >= limit then
    status = 0
  end
  out[#out + 1] = status
  if status == 0 then
    out[#out + 1] = 0
  else
    redis.call('HSETNX', hash, 'since', text(now))
    redis.call('HSET', hash, 'user', user, 'node', node, 'state', state)
    redis.call('PEXPIRE', hash, ms + 1000)
    redis.call('DEL', set)
    for j = i + 4, i + 3 + n do redis.call('SADD', set, ARGV[j]) end
    if n > 0 then redis.call('PEXPIRE', set, ms + 1000) end
    out[#out + 1] = live(user, sid, ends)
    belongs(node, sid, ends)
  end
  i = i + 4 + n
end
return out
