-- Change a lane's pressure stage if it stands as the caller saw it. Args: lane, from, to. Answers 1 for the one who changed it.
local name = base .. ':stage:' .. ARGV[2]
local held = redis.call('GET', name) or 'normal'
if held ~= ARGV[3] then return 0 end
redis.call('SET', name, ARGV[4], 'PX', ARGV[1])
return held ~= ARGV[4] and 1 or 0
