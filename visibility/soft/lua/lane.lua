-- State of a lane. Args: lane. Answers pending, due now, claimed, claims expired, lag of the oldest due in ms, its name, wake set,
-- its age in ms, and the lane's pressure stage (shard 0's is the one that counts).
local lane = ARGV[2]
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane
local first = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
local since = first[1] and redis.call('HGET', base .. ':state:' .. first[1], 'since')
return {
  redis.call('ZCARD', pending), redis.call('ZCOUNT', pending, '-inf', now), redis.call('ZCARD', claimed),
  redis.call('ZCOUNT', claimed, '-inf', now), first[2] and (now - tonumber(first[2])) or 0, first[1] or '',
  redis.call('EXISTS', base .. ':wake:' .. lane), since and (now - tonumber(since)) or 0,
  redis.call('GET', base .. ':stage:' .. lane) or 'normal',
}
