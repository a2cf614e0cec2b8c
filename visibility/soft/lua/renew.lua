-- Upsert leases. Sections: type, role, ms, counts, switch, part, n, then n pairs key, member; pairs of one key stand together.
-- counts: this role makes the resource visible. switch: the members leave their other role.
-- part: what has to happen each time, with 1 also to carry trust on, with 2 also all the rest: the lifetimes of the leases' keys,
-- which are many leases long, and the removal of what has ended in them.
-- Answers per section: the versions that leases vouch for, by key, and rows of those to look at (what came to life, what is not
-- vouched for; with 2, all): number of the key, created, lapsed, version, ms until it is to be refreshed by its age.
local out, i = {}, 2
local other = {watchers = 'background', background = 'watchers'}
while i <= #ARGV do
  local typ, role, ms, counts, switch, part, n =
    ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3] == '1', ARGV[i + 4] == '1', tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6])
  local j, stop = i + 7, i + 7 + 2 * n
  i = stop
  local head, ends = base .. ':' .. role .. ':' .. typ .. ':', text(now + ms)
  local left = switch and other[role] and base .. ':' .. other[role] .. ':' .. typ .. ':'
  local keep = 10 * ms + 1000
  local keys, fresh = {}, {}
  while j < stop do
    local key = ARGV[j]
    local set, new = head .. key, 0
    if ARGV[j + 2] ~= key or j + 2 >= stop then
      if role == 'holders' then new = redis.call('ZADD', set, 'GT', ends, ARGV[j + 1])
      else new = redis.call('ZADD', set, ends, ARGV[j + 1]) end
      if left then redis.call('ZREM', left .. key, ARGV[j + 1]) end
      j = j + 2
    else
      local args = role == 'holders' and {'GT'} or {}
      while j < stop and ARGV[j] == key do
        args[#args + 1] = ends
        args[#args + 1] = ARGV[j + 1]
        if left then redis.call('ZREM', left .. key, ARGV[j + 1]) end
        j = j + 2
      end
      new = redis.call('ZADD', set, unpack(args))
    end
    if role == 'holders' then
      if redis.call('PTTL', set) < keep then redis.call('PEXPIRE', set, keep) end
    elseif new > 0 or part == 2 then
      redis.call('PEXPIRE', set, keep)
    end
    if part == 2 then redis.call('ZREMRANGEBYSCORE', set, '-inf', now) end
    keys[#keys + 1] = key
    fresh[#fresh + 1] = base .. ':fresh:' .. typ .. ':' .. key
  end
  local versions, rows = redis.call('MGET', unpack(fresh)), {}
  local index = base .. ':visible:' .. typ
  local before = counts and redis.call('ZMSCORE', index, unpack(keys))
  local later = {}
  for k, key in ipairs(keys) do
    local created, lapsed = 0, 0
    if counts then
      local till = before[k] and tonumber(before[k]) or 0
      if till <= now then
        -- rule 3, trust: a lease where none lived takes it away
        created = 1
        if before[k] then lapsed = 1 end
        local state = base .. ':state:' .. typ .. ':' .. key
        redis.call('HSET', state, 'epoch', tick())
        redis.call('PEXPIRE', state, ARGV[1])
        redis.call('DEL', fresh[k])
        versions[k] = false
      end
      if till < now + ms then
        later[#later + 1] = ends
        later[#later + 1] = key
        if versions[k] and part > 0 then redis.call('PEXPIRE', fresh[k], ms) end
      end
    end
    if part == 2 or not versions[k] then
      local seen = redis.call('HMGET', base .. ':state:' .. typ .. ':' .. key, 'ver', 'soft')
      rows[#rows + 1] = {k, created, lapsed, seen[1] or '0', seen[2] and tonumber(seen[2]) - now or 0}
    end
    versions[k] = versions[k] or '0'
  end
  if #later > 0 then redis.call('ZADD', index, unpack(later)) end
  if counts and (redis.call('PTTL', index) < KEEP / 2 or ms > KEEP / 4) then redis.call('PEXPIRE', index, KEEP + ms) end
  out[#out + 1] = versions
  out[#out + 1] = rows
end
return out
