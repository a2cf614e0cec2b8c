-- Wake a lane that has work due soon or claims that ended, unless somebody is on the way. Args: lane. Answers 1: enqueue a drain.
local lane = ARGV[2]
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane
if redis.call('ZCOUNT', pending, '-inf', now + 2000) + redis.call('ZCOUNT', claimed, '-inf', now) == 0 then return 0 end
redis.call('PEXPIRE', pending, ARGV[1])
return wake(lane)
