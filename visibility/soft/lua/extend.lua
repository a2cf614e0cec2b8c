-- Renew claims. Args: lane, token, lease, res…. Answers the resources that are no longer owned.
local lane, token, lease = ARGV[2], ARGV[3], tonumber(ARGV[4])
local claimed, lost = base .. ':claimed:' .. lane, {}
for i = 5, #ARGV do
  local res = ARGV[i]
  local ends = redis.call('ZSCORE', claimed, res)
  if ends and tonumber(ends) > now and redis.call('HGET', base .. ':state:' .. res, 'owner') == token then
    redis.call('ZADD', claimed, now + lease, res)
    redis.call('PEXPIRE', claimed, ARGV[1])
  else
    lost[#lost + 1] = res
  end
end
return lost
