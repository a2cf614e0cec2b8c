-- How many ms ago somebody maintained, or -1.
local at = redis.call('GET', base .. ':maintained')
return at and math.max(0, now - tonumber(at)) or -1
