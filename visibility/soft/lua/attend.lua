-- Upsert sessions of one process. Args: ms, node, process, limit, then groups: user, sid, state, n, resource × n.
-- An empty state renews what is there and no more. The limit on sessions of a user counts for new ones; the user '-' is nobody.
-- Answers: now, whether this process's mark was still there (a flush takes it), the newest number of the access log, then per session:
-- 0 refused, or gone and to be sent whole, 1 known, 2 new; and 0 no crossing, 1 user came online, 2 after an unannounced end.
local ms, node, limit = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5])
local ends, online, members = now + ms, base .. ':online', base .. ':node:' .. node
local mark = base .. ':process:' .. ARGV[4]
local out = {now, redis.call('EXISTS', mark), redis.call('HGET', base .. ':access', 'last') or '0'}
redis.call('SET', mark, text(now), 'PX', ms)

local function live(user, sid)
  local presence = base .. ':presence:' .. user
  redis.call('ZREMRANGEBYSCORE', presence, '-inf', now)
  redis.call('ZADD', presence, ends, sid)
  redis.call('PEXPIRE', presence, ms + 1000)
  redis.call('ZADD', members, ends, sid)
  if user == '-' then return 0 end
  local before = redis.call('ZSCORE', online, user)
  redis.call('ZADD', online, ends, user)
  if not before then return 1 end
  return tonumber(before) <= now and 2 or 0
end

local i = 6
while i <= #ARGV do
  local user, sid, state, n = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local hash, set = base .. ':session:' .. sid, base .. ':interests:' .. sid
  local status = redis.call('PEXPIRE', hash, ms + 1000)
  if state == '' then
    if status == 1 then redis.call('PEXPIRE', set, ms + 1000) end
  else
    local full = limit > 0 and user ~= '-' and redis.call('ZCOUNT', base .. ':presence:' .. user, '(' .. now, '+inf') >= limit
    if status == 1 or not full then
      if status == 0 then
        status = 2
        redis.call('HSET', hash, 'since', text(now))
      end
      redis.call('HSET', hash, 'user', user, 'node', node, 'state', state)
      redis.call('PEXPIRE', hash, ms + 1000)
      redis.call('DEL', set)
      for j = i + 4, i + 3 + n do redis.call('SADD', set, ARGV[j]) end
      if n > 0 then redis.call('PEXPIRE', set, ms + 1000) end
    end
  end
  out[#out + 1] = status
  out[#out + 1] = status > 0 and live(user, sid) or 0
  i = i + 4 + n
end
if #ARGV > 5 then
  redis.call('PEXPIRE', members, ms + 1000)
  if redis.call('PTTL', online) < KEEP / 2 then redis.call('PEXPIRE', online, KEEP) end
end
return out
