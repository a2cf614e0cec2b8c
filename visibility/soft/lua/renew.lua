-- Upsert leases. Groups: res, role, ms, counts, switch, n, member × n. counts: this role makes the resource visible.
-- switch: the members leave their other role. Answers per group: created, lapsed, version, fresh.
local out, touched, i = {}, {}, 2
local other = {watchers = 'background', background = 'watchers'}
while i <= #ARGV do
  local res, role, ms, counts, switch, n = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4], tonumber(ARGV[i + 5])
  i = i + 6
  local set = base .. ':' .. role .. ':' .. res
  local ends = now + ms
  local args = {}
  for j = i, i + n - 1 do
    args[#args + 1] = ends
    args[#args + 1] = ARGV[j]
    if switch == '1' and other[role] then redis.call('ZREM', base .. ':' .. other[role] .. ':' .. res, ARGV[j]) end
  end
  i = i + n
  if role == 'holders' then
    redis.call('ZADD', set, 'GT', unpack(args))
    if redis.call('PTTL', set) < ms + 1000 then redis.call('PEXPIRE', set, ms + 1000) end
  else
    redis.call('ZADD', set, unpack(args))
    redis.call('PEXPIRE', set, ms + 1000)
  end
  redis.call('ZREMRANGEBYSCORE', set, '-inf', now)
  local state, fresh = base .. ':state:' .. res, base .. ':fresh:' .. res
  local created, lapsed = 0, 0
  if counts == '1' then
    local typ, key = split(res)
    local index = base .. ':visible:' .. typ
    local before = redis.call('ZSCORE', index, key)
    local till = before and tonumber(before) or 0
    if till <= now then
      -- rule 3, trust: a lease where none lived takes it away
      created = 1
      if before then lapsed = 1 end
      redis.call('HSET', state, 'epoch', tick())
      redis.call('PEXPIRE', state, KEEP)
      redis.call('DEL', fresh)
      redis.call('ZADD', index, ends, key)
    elseif till < ends then
      redis.call('ZADD', index, ends, key)
      redis.call('PEXPIRE', fresh, ends - now)
    end
    if not touched[index] then
      touched[index] = true
      if redis.call('PTTL', index) < KEEP / 2 or ms > KEEP / 4 then redis.call('PEXPIRE', index, KEEP + ms) end
    end
  end
  local seen = redis.call('HMGET', state, 'ver', 'soft')
  out[#out + 1] = {created, lapsed, seen[1] or '0', redis.call('GET', fresh) or '0', seen[2] and (tonumber(seen[2]) - now) or 0}
end
return out
