-- Renew sessions of one process. Args: ms, node, then pairs: user, sid. Answers: whether this process's mark was still there (it is
-- not after a flush), the newest number of the access log, then per pair: 0 the session is gone and must join again, 1 renewed;
-- and crossed as in `join`.
local ms, node = tonumber(ARGV[2]), ARGV[3]
local ends = now + ms
local mark = base .. ':process:' .. node
local known = redis.call('EXISTS', mark)
redis.call('SET', mark, text(now), 'PX', ms)
local out = {known, redis.call('HGET', base .. ':access', 'last') or '0'}
for i = 4, #ARGV, 2 do
  local user, sid = ARGV[i], ARGV[i + 1]
  if redis.call('PEXPIRE', base .. ':session:' .. sid, ms + 1000) == 1 then
    redis.call('PEXPIRE', base .. ':interests:' .. sid, ms + 1000)
    out[#out + 1] = 1
    out[#out + 1] = live(user, sid, ends)
    belongs(node, sid, ends)
  else
    out[#out + 1] = 0
    out[#out + 1] = 0
  end
end
return out
