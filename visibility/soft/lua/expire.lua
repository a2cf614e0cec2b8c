-- Pop keys of a type whose visibility has ended: whoever pops one announces it. Args: type, limit.
local index = base .. ':visible:' .. ARGV[2]
local keys = redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, tonumber(ARGV[3]))
if #keys > 0 then redis.call('ZREM', index, unpack(keys)) end
return keys
