-- Sessions to drop, at most `limit`. Args: what (user, node or session), name, limit. Answers triples: user, sid, its resources.
local what, name, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local sids, out = {name}, {}
if what == 'user' then sids = redis.call('ZRANGE', base .. ':presence:' .. name, 0, limit - 1) end
if what == 'node' then sids = redis.call('ZRANGE', base .. ':node:' .. name, 0, limit - 1) end
for _, sid in ipairs(sids) do
  local user = redis.call('HGET', base .. ':session:' .. sid, 'user')
  if user then
    out[#out + 1] = {user, sid, redis.call('SMEMBERS', base .. ':interests:' .. sid)}
  elseif what == 'node' then
    redis.call('ZREM', base .. ':node:' .. name, sid)
  elseif what == 'user' then
    out[#out + 1] = {name, sid, {}}
  end
end
return out
