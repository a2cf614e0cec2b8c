-- Put resources into a lane. Args: lane, bound, share, tenant_rate, tenant_burst, then groups of alike ones: since, event, mode,
-- front_window, hidden_window, tenant, n, res × n. Answers accepted, merged, wake (2: and nothing was
-- pending or claimed before and no drain was at work, so none can be waiting), then (index, reason) of the shed.
-- mode: 0 changed, 1 changed and to be built though nobody watches, 2 nothing changed, build it anew (what stands may be served);
-- since is then the version that the caller saw (-1: any): what was built meanwhile is passed over.
local lane, bound, share = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local rate, burst = tonumber(ARGV[5]), tonumber(ARGV[6])
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane
local size = redis.call('ZCARD', pending) + redis.call('ZCARD', claimed)
local idle = size == 0 and redis.call('EXISTS', base .. ':busy:' .. lane) == 0
local accepted, merged, due_soon, shed = 0, 0, false, {}

local function alive(role, res)
  local last = redis.call('ZREVRANGE', base .. ':' .. role .. ':' .. res, 0, 0, 'WITHSCORES')
  return last[2] and tonumber(last[2]) > now
end

local function tenant_refuses(tenant)
  if tenant == '' then return nil end
  if share < bound and redis.call('ZCARD', base .. ':tenant:' .. lane .. ':' .. tenant) >= share then return 'share' end
  if rate <= 0 then return nil end
  local bucket = base .. ':bucket:' .. tenant
  local level, at = unpack(redis.call('HMGET', bucket, 'level', 'at'))
  level = math.min(burst, tonumber(level or burst) + (now - tonumber(at or now)) * rate / 1000)
  if level < 1 then return 'tenant' end
  redis.call('HSET', bucket, 'level', tostring(level - 1), 'at', text(now))
  redis.call('PEXPIRE', bucket, ARGV[1])
  return nil
end

local names, groups = {}, {}
local i = 7
while i <= #ARGV do
  local n = tonumber(ARGV[i + 6])
  for j = i + 7, i + 6 + n do
    names[#names + 1] = ARGV[j]
    groups[#groups + 1] = i
  end
  i = i + 7 + n
end
local was_pending, was_claimed = scores(pending, names), scores(claimed, names)
local first = ticks(math.max(1, #names))
local new, sooner, untrusted, known, set = {}, {}, {}, {}, {}

local function put(name, value)
  set[#set + 1] = name
  set[#set + 1] = value
end

for n, res in ipairs(names) do
  local at = groups[n]
  local since, event, mode, front, hidden, tenant =
    tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5]
  local state = base .. ':state:' .. res
  -- Named twice in one call: it is pending by the first.
  local is_pending, is_claimed = known[res] or was_pending[n], was_claimed[n]
  if is_claimed and tonumber(is_claimed) <= now then
    -- Its owner is gone; what was behind its claim waits again.
    is_claimed = false
    if redis.call('ZREM', claimed, res) == 1 then
      local owed = redis.call('HMGET', state, 'hot', 'forced', 'since2')
      redis.call('HDEL', state, 'owner', 'since2', 'window')
      size = size - 1
      if owed[1] or owed[2] then
        redis.call('HINCRBY', state, 'lost', 1)
        if owed[3] then redis.call('HSETNX', state, 'since', owed[3]) end
        redis.call('ZADD', pending, now, res)
        is_pending, size = text(now), size + 1
        known[res] = is_pending
      end
    end
  end
  local reason = nil
  local over = mode == '2' and since >= 0 and tonumber(redis.call('HGET', state, 'ver') or '0') > since
  if not over and not is_pending and not is_claimed then
    if size >= bound then reason = 'bound' else reason = tenant_refuses(tenant) end
  end
  if reason then
    shed[#shed + 1] = n
    shed[#shed + 1] = reason
  elseif not over then
    accepted = accepted + 1
    local age = is_claimed and 'since2' or 'since'
    local seen = redis.call('HMGET', state, 'built', 'nb', 'window', age)
    set = {}
    if mode ~= '0' then put('forced', '1') end
    if mode ~= '2' then
      put('gen', text(first + n - 1))
      put('hot', '1')
      put('ev', event)
      if not seen[4] then put(age, text(since)) end
      untrusted[#untrusted + 1] = base .. ':fresh:' .. res
    elseif is_claimed then
      -- The build under way may have read too early.
      put('gen', text(first + n - 1))
    end
    local window = front
    if hidden > front and mode == '0' and not alive('watchers', res) and not alive('holders', res) then window = hidden end
    if is_claimed then
      merged = merged + 1
      if not seen[3] or tonumber(seen[3]) > window then put('window', window) end
    else
      local due = math.max(now, tonumber(seen[1] or '0') + window, tonumber(seen[2] or '0'))
      local list = is_pending and sooner or new
      list[#list + 1] = text(due)
      list[#list + 1] = res
      known[res] = due
      if is_pending then
        merged = merged + 1
      else
        size = size + 1
        -- It counts for the tenant that put it here, until it is claimed.
        put('tenant', tenant)
        if tenant ~= '' then
          redis.call('ZADD', base .. ':tenant:' .. lane .. ':' .. tenant, due, res)
          redis.call('PEXPIRE', base .. ':tenant:' .. lane .. ':' .. tenant, ARGV[1])
        end
      end
      if due < now + 2000 then due_soon = true end
    end
    if #set > 0 then redis.call('HSET', state, unpack(set)) end
    -- A build renews the lifetime, too.
    if not seen[1] or now - tonumber(seen[1]) > KEEP / 2 then redis.call('PEXPIRE', state, ARGV[1]) end
  end
end
if #new > 0 then redis.call('ZADD', pending, unpack(new)) end
if #sooner > 0 then redis.call('ZADD', pending, 'LT', unpack(sooner)) end
if #untrusted > 0 then redis.call('DEL', unpack(untrusted)) end
if accepted > 0 then redis.call('PEXPIRE', pending, ARGV[1]) end
local woke = 0
if due_soon then woke = wake(lane) end
if woke == 1 and idle then woke = 2 end
return {accepted, merged, woke, shed}
