//! The scripts: each does one thing atomically and can be repeated. Redis 6.2 commands only.
//!
//! Keys of a session, all under one hash tag: `q` the queue (call → place), `c` entries, `m` what the claim needs of each
//! (`method|key|idempotency field`), `n` the nodes whose clients wait, `k` claimed by, `i` idempotency field → `call:digest`,
//! `l` the last place, `o` the lease, `w` the watching nodes. Of the cluster: `world`, `settling`, `nodes`, `alive:<node>`,
//! `inbox:<node>`.
//!
//! What a wipe does: leases, entries and watch sets are made again by their nodes within the time that everything settles;
//! the database knows every call that has started.

use redis::Script;

/// How long a session's keys live after the last touch, in seconds.
const KEEP: u32 = 86_400;

/// Lua that several scripts share. A world that is not there was emptied: nothing is taken or popped until owners and
/// callers have made their entries again.
const SHARED: &str = r"
local function alive(prefix, nodes)
  for node in string.gmatch(nodes or '', '[^,]+') do
    if redis.call('EXISTS', prefix .. 'alive:' .. node) == 1 then return true end
  end
  return false
end
local function post(prefix, node, frame)
  local inbox = prefix .. 'inbox:' .. node
  redis.call('XADD', inbox, 'MAXLEN', '~', 10000, '*', 'f', frame)
  redis.call('EXPIRE', inbox, 120)
end
local function post_all(prefix, nodes, me, frame)
  for node in string.gmatch(nodes or '', '[^,]+') do
    if node ~= me then post(prefix, node, frame) end
  end
end
local function forget(s, call)
  local meta = redis.call('HGET', s .. 'm', call)
  if meta then
    local idem = string.match(meta, '^[^|]*|[^|]*|(.*)$')
    if idem and idem ~= '' then redis.call('HDEL', s .. 'i', idem) end
  end
  redis.call('ZREM', s .. 'q', call)
  redis.call('HDEL', s .. 'c', call)
  redis.call('HDEL', s .. 'm', call)
  redis.call('HDEL', s .. 'n', call)
  redis.call('HDEL', s .. 'k', call)
end
local function settles(prefix, lease)
  if redis.call('EXISTS', prefix .. 'world') == 0 then
    redis.call('SET', prefix .. 'world', '?')
    redis.call('SET', prefix .. 'settling', '1', 'PX', lease)
  end
  return redis.call('EXISTS', prefix .. 'settling') == 1
end
";

/// `ARGV`: prefix, session keys' prefix, node, then what each says.
pub(super) struct Scripts {
    /// call, entry, meta, idempotency field, digest, limit, lease ms, place or 0, wake frame → status, call, place, owner.
    pub enqueue: Script,
    /// gate (`free`, `held`, `expired`), owner key, lease ms → status, then a call and its entry, or calls.
    pub claim: Script,
    /// call → whether it was dropped.
    pub unclaim: Script,
    /// call.
    pub started: Script,
    /// call, frame.
    pub refuse: Script,
    /// frame.
    pub refuse_all: Script,
    /// call → whether it was dropped.
    pub leave: Script,
    /// lease ms, `1` for a session with an open turn → 1 when this node holds the lease now.
    pub take: Script,
    /// lease ms → 1 when this node still holds the lease.
    pub confirm: Script,
    /// lease ms, then the sessions' key prefixes → 1 or 0 for each.
    pub renew: Script,
    /// frame to offer the session with, or empty → 1.
    pub release: Script,
    /// → how many calls wait.
    pub waiting: Script,
    /// → the owner, or empty.
    pub owner: Script,
    /// frame → posted to the owner.
    pub to_owner: Script,
    /// frame → posted to the watching nodes.
    pub to_watchers: Script,
    /// frame → posted to every living node.
    pub to_all: Script,
    /// seconds.
    pub watch: Script,
    /// run id, alive ms, lease ms, `1` if no node was alive before this one, `1` if draining → 1 when Redis did not know this
    /// node (any more).
    pub beat: Script,
    /// → the living nodes.
    pub nodes: Script,
    /// The node leaves.
    pub bye: Script,
}

fn script(body: &str) -> Script {
    const HEAD: &str = "local p, s, me = ARGV[1], ARGV[2], ARGV[3]\n";
    let keep = format!(
        "local function keep() for _, k in ipairs({{'q','c','m','n','k','i','l'}}) do redis.call('EXPIRE', s .. k, {KEEP}) end end\n"
    );
    Script::new(&format!("{HEAD}{SHARED}{keep}{body}"))
}

impl Scripts {
    pub fn new() -> Self {
        Self {
            enqueue: script(
                r"
local call, entry, meta, idem, digest = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local limit, lease, given, wake = tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11]), ARGV[12]
local settling = settles(p, lease)
if idem ~= '' then
  local known = redis.call('HGET', s .. 'i', idem)
  if known then
    local first, its = string.match(known, '^(.-):(.*)$')
    if first ~= call and redis.call('HEXISTS', s .. 'c', first) == 1 then
      if its ~= digest then return {'other', '', 0, ''} end
      local nodes = redis.call('HGET', s .. 'n', first) or ''
      if not string.find(nodes, me, 1, true) then redis.call('HSET', s .. 'n', first, nodes .. ',' .. me) end
      return {'joined', first, string.format('%.0f', redis.call('ZSCORE', s .. 'q', first) or 0), ''}
    end
  end
end
local place = redis.call('ZSCORE', s .. 'q', call)
if not place then
  if redis.call('ZCARD', s .. 'q') >= limit then return {'full', '', 0, ''} end
  -- A call whose node had only been frozen is accepted anew; after a wipe each comes back to its place.
  if given > 0 and settling then place = given
  else
    local t = redis.call('TIME')
    place = math.max(tonumber(t[1]) * 1000000 + tonumber(t[2]), tonumber(redis.call('GET', s .. 'l') or '0') + 1)
    redis.call('SET', s .. 'l', string.format('%.0f', place))
  end
  redis.call('ZADD', s .. 'q', string.format('%.0f', place), call)
  redis.call('HSET', s .. 'c', call, entry)
  redis.call('HSET', s .. 'm', call, meta)
  if idem ~= '' then redis.call('HSET', s .. 'i', idem, call .. ':' .. digest) end
  keep()
end
local nodes = redis.call('HGET', s .. 'n', call) or ''
if not string.find(nodes, me, 1, true) then redis.call('HSET', s .. 'n', call, nodes .. ',' .. me) end
local owner = redis.call('GET', s .. 'o')
if not owner and not settling then
  redis.call('SET', s .. 'o', me, 'PX', lease)
  owner = me
elseif owner and owner ~= me then
  post(p, owner, wake)
end
return {'ok', call, string.format('%.0f', place), owner or ''}
",
            ),
            claim: script(
                r"
local gate, holder, lease = ARGV[4], ARGV[5], ARGV[6]
local settling = settles(p, lease)
if redis.call('GET', s .. 'o') ~= me then return {'lost'} end
if settling then return {'wait'} end
local first, owners, compacts = nil, nil, {}
for _, call in ipairs(redis.call('ZRANGE', s .. 'q', 0, -1)) do
  local meta = redis.call('HGET', s .. 'm', call)
  local claimed = redis.call('HGET', s .. 'k', call)
  if not meta or not (claimed or alive(p, redis.call('HGET', s .. 'n', call))) then
    forget(s, call)
  else
    local method, key = string.match(meta, '^([^|]*)|([^|]*)|')
    if gate == 'held' and method == 'compact' then compacts[#compacts + 1] = call end
    if not first then first = call end
    if not owners and method == 'message' and key == holder then owners = call end
  end
end
if #compacts > 0 then return {'refuse', unpack(compacts)} end
local call = first
if gate == 'held' then call = owners elseif gate == 'expired' and owners then call = owners end
if not call then return {'wait'} end
redis.call('HSET', s .. 'k', call, me)
return {'run', call, redis.call('HGET', s .. 'c', call)}
",
            ),
            unclaim: script(
                r"
redis.call('HDEL', s .. 'k', ARGV[4])
if alive(p, redis.call('HGET', s .. 'n', ARGV[4])) then return 0 end
forget(s, ARGV[4])
return 1
",
            ),
            started: script("forget(s, ARGV[4]) return 1"),
            refuse: script(
                r"
local nodes = redis.call('HGET', s .. 'n', ARGV[4])
forget(s, ARGV[4])
post_all(p, nodes, me, ARGV[5])
return 1
",
            ),
            refuse_all: script(
                r"
for _, call in ipairs(redis.call('ZRANGE', s .. 'q', 0, -1)) do
  post_all(p, redis.call('HGET', s .. 'n', call), me, ARGV[4])
  forget(s, call)
end
return 1
",
            ),
            leave: script(
                r"
if redis.call('HEXISTS', s .. 'k', ARGV[4]) == 1 then return 0 end
local nodes, left = redis.call('HGET', s .. 'n', ARGV[4]), {}
for node in string.gmatch(nodes or '', '[^,]+') do
  if node ~= me then left[#left + 1] = node end
end
if #left > 0 then
  redis.call('HSET', s .. 'n', ARGV[4], table.concat(left, ','))
  return 0
end
forget(s, ARGV[4])
return 1
",
            ),
            take: script(
                r"
local settling = settles(p, ARGV[4])
local owner = redis.call('GET', s .. 'o')
if owner == me then redis.call('PEXPIRE', s .. 'o', ARGV[4]) return 1 end
if owner or (settling and ARGV[5] == '1') then return 0 end
redis.call('SET', s .. 'o', me, 'PX', ARGV[4])
return 1
",
            ),
            confirm: script(
                r"
if redis.call('GET', s .. 'o') ~= me then return 0 end
redis.call('PEXPIRE', s .. 'o', ARGV[4])
return 1
",
            ),
            renew: script(
                r"
local settling = settles(p, ARGV[4])
local held = {}
for i = 5, #ARGV do
  local lease = ARGV[i] .. 'o'
  local owner = redis.call('GET', lease)
  if owner == me or (not owner and settling) then
    redis.call('SET', lease, me, 'PX', ARGV[4])
    held[#held + 1] = 1
  else
    held[#held + 1] = 0
  end
end
return held
",
            ),
            release: script(
                r"
if redis.call('GET', s .. 'o') ~= me then return 1 end
redis.call('DEL', s .. 'o')
if ARGV[4] == '' then return 1 end
local heir = nil
local first = redis.call('ZRANGE', s .. 'q', 0, 0)[1]
for node in string.gmatch(first and redis.call('HGET', s .. 'n', first) or '', '[^,]+') do
  if node ~= me and redis.call('EXISTS', p .. 'alive:' .. node) == 1 then heir = node end
end
if not heir then
  local t = tonumber(redis.call('TIME')[2])
  local nodes = redis.call('SMEMBERS', p .. 'nodes')
  for i = 1, #nodes do
    local node = nodes[(i + t) % #nodes + 1]
    if node ~= me and redis.call('EXISTS', p .. 'alive:' .. node) == 1
      and redis.call('EXISTS', p .. 'draining:' .. node) == 0 then heir = node break end
  end
end
if heir then post(p, heir, ARGV[4]) end
return 1
",
            ),
            waiting: script("return redis.call('ZCARD', s .. 'q')"),
            owner: script("return redis.call('GET', s .. 'o') or ''"),
            to_owner: script(
                r"
local owner = redis.call('GET', s .. 'o')
if owner and owner ~= me then post(p, owner, ARGV[4]) end
return owner or ''
",
            ),
            to_watchers: script(
                r"
local t = redis.call('TIME')
for _, node in ipairs(redis.call('ZRANGEBYSCORE', s .. 'w', t[1], '+inf')) do
  if node ~= me then post(p, node, ARGV[4]) end
end
return 1
",
            ),
            to_all: script(
                r"
for _, node in ipairs(redis.call('SMEMBERS', p .. 'nodes')) do
  if node ~= me and redis.call('EXISTS', p .. 'alive:' .. node) == 1 then post(p, node, ARGV[4]) end
end
return 1
",
            ),
            watch: script(
                r"
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', s .. 'w', '-inf', now - 1)
redis.call('ZADD', s .. 'w', now + tonumber(ARGV[4]), me)
redis.call('EXPIRE', s .. 'w', tonumber(ARGV[4]) * 2)
return 1
",
            ),
            beat: script(
                r"
local world, run, new = redis.call('GET', p .. 'world'), ARGV[4], 0
if redis.call('EXISTS', p .. 'alive:' .. me) == 0 then new = 1 end
if world ~= run then
  if world ~= '?' and ARGV[7] ~= '1' then redis.call('SET', p .. 'settling', '1', 'PX', ARGV[6]) end
  redis.call('SET', p .. 'world', run)
end
redis.call('SET', p .. 'alive:' .. me, '1', 'PX', ARGV[5])
redis.call('SADD', p .. 'nodes', me)
if ARGV[8] == '1' then redis.call('SET', p .. 'draining:' .. me, '1', 'EX', 3600) end
redis.call('EXPIRE', p .. 'inbox:' .. me, 120)
for _, node in ipairs(redis.call('SRANDMEMBER', p .. 'nodes', 3)) do
  if redis.call('EXISTS', p .. 'alive:' .. node) == 0 then redis.call('SREM', p .. 'nodes', node) end
end
return new
",
            ),
            nodes: script(
                r"
local living = {}
for _, node in ipairs(redis.call('SMEMBERS', p .. 'nodes')) do
  if redis.call('EXISTS', p .. 'alive:' .. node) == 1 then
    local draining = redis.call('EXISTS', p .. 'draining:' .. node) == 1
    living[#living + 1] = node .. (draining and ' draining' or ' ready')
  end
end
return living
",
            ),
            bye: script(
                r"
redis.call('DEL', p .. 'alive:' .. me, p .. 'draining:' .. me, p .. 'inbox:' .. me)
redis.call('SREM', p .. 'nodes', me)
return 1
",
            ),
        }
    }
}
