-- Upsert sessions of one process. Args: ms, node, process, limit, n, then n pairs user, sid that are only renewed, then groups that are
-- written whole: user, sid, state, n, resource × n. The limit on sessions of a user counts for new ones; the user '-' is nobody.
-- Keys of a session live for many leases, and whole groups come in between; what counts are the ends in the sorted sets.
-- Answers: now, whether this process's mark was still there (a flush takes it), the newest number of the access log, then per session:
-- 0 refused, or gone and to be sent whole, 1 known, 2 new; and 0 no crossing, 1 user came online, 2 after an unannounced end.
local ms, node, limit, pairs_ = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6])
local ends, keep = text(now + ms), 10 * ms + 1000
local online, members = base .. ':online', base .. ':node:' .. node
local mark = base .. ':process:' .. ARGV[4]
local out = {now, redis.call('EXISTS', mark), redis.call('GET', base .. ':access') or '0'}
redis.call('SET', mark, text(now), 'PX', ms)

local first = 7 + 2 * pairs_
if pairs_ > 0 then
  local hashes, users, seats = {}, {}, {}
  for i = 7, first - 1, 2 do hashes[#hashes + 1] = base .. ':session:' .. ARGV[i + 1] end
  local all = redis.call('EXISTS', unpack(hashes)) == pairs_
  local names, place = {}, {}
  for k = 1, pairs_ do
    local user, sid = ARGV[5 + 2 * k], ARGV[6 + 2 * k]
    local known = all or redis.call('EXISTS', hashes[k]) == 1
    out[#out + 1] = known and 1 or 0
    out[#out + 1] = 0
    if known then
      local presence = base .. ':presence:' .. user
      if redis.call('ZADD', presence, ends, sid) == 1 then redis.call('PEXPIRE', presence, keep) end
      seats[#seats + 1] = ends
      seats[#seats + 1] = sid
      if user ~= '-' and not place[user] then
        names[#names + 1] = user
        place[user] = #out
      end
    end
  end
  if #seats > 0 then redis.call('ZADD', members, unpack(seats)) end
  if #names > 0 then
    local before = redis.call('ZMSCORE', online, unpack(names))
    for k, user in ipairs(names) do
      users[#users + 1] = ends
      users[#users + 1] = user
      if not before[k] then out[place[user]] = 1 elseif tonumber(before[k]) <= now then out[place[user]] = 2 end
    end
    redis.call('ZADD', online, unpack(users))
  end
end

local function live(user, sid)
  local presence = base .. ':presence:' .. user
  redis.call('ZREMRANGEBYSCORE', presence, '-inf', now)
  redis.call('ZADD', presence, ends, sid)
  redis.call('PEXPIRE', presence, keep)
  redis.call('ZADD', members, ends, sid)
  if user == '-' then return 0 end
  local before = redis.call('ZSCORE', online, user)
  redis.call('ZADD', online, ends, user)
  if not before then return 1 end
  return tonumber(before) <= now and 2 or 0
end

local i = first
while i <= #ARGV do
  local user, sid, state, n = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local hash, set = base .. ':session:' .. sid, base .. ':interests:' .. sid
  local status = redis.call('PEXPIRE', hash, keep)
  if state == '' then
    if status == 1 then redis.call('PEXPIRE', set, keep) end
  else
    local full = limit > 0 and user ~= '-' and redis.call('ZCOUNT', base .. ':presence:' .. user, '(' .. now, '+inf') >= limit
    if status == 1 or not full then
      if status == 0 then
        status = 2
        redis.call('HSET', hash, 'since', text(now))
      end
      redis.call('HSET', hash, 'user', user, 'node', node, 'state', state)
      redis.call('PEXPIRE', hash, keep)
      redis.call('DEL', set)
      for j = i + 4, i + 3 + n do redis.call('SADD', set, ARGV[j]) end
      if n > 0 then redis.call('PEXPIRE', set, keep) end
    end
  end
  out[#out + 1] = status
  out[#out + 1] = status > 0 and live(user, sid) or 0
  i = i + 4 + n
end
if #ARGV > 6 then
  redis.call('PEXPIRE', members, keep)
  if redis.call('PTTL', online) < KEEP / 2 then redis.call('PEXPIRE', online, ARGV[1]) end
end
return out
