-- An owner-token lock with a fencing number. Args: what (acquire, extend, release), name, owner, ms. Answers the fence, or 0.
local what, name, owner, ms = ARGV[2], base .. ':lock:' .. ARGV[3], ARGV[4], tonumber(ARGV[5])
local held = redis.call('GET', name)
if what == 'acquire' then
  if held then return '0' end
  local fence = tick()
  redis.call('SET', name, owner .. '|' .. fence, 'PX', ms)
  return fence
end
if not held or string.sub(held, 1, #owner + 1) ~= owner .. '|' then return '0' end
if what == 'extend' then redis.call('PEXPIRE', name, ms) else redis.call('DEL', name) end
return string.sub(held, #owner + 2)
