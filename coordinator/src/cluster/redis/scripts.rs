//! The scripts: each does one thing atomically and can be repeated. Redis 6.2 commands only.
//!
//! Keys of a session, all under one hash tag: `q` the queue (call → place), `c` entries, `m` what the claim needs of each
//! (`method|key|idempotency field`), `n` the nodes whose clients wait, `k` claimed by, `i` idempotency field → `call:digest`,
//! `l` the last place, `o` the lease, `w` the watching nodes, `gone:<call>:<node>` left just now. Of the cluster: `world`
//! (the server run id that nodes met last), `pulse` (the last heartbeat, which expires after a lease time), `settling` (the
//! grace period, while it lasts), `nodes`,
//! `alive:<node>`, `here:<node>` (it has queued a call since it was alive last), `draining:<node>`, `inbox:<node>`.
//!
//! When Redis is emptied, nodes write their leases, queue entries and watch sets again within the grace period; the database
//! knows every call that has started. The key names are those of earlier versions: during an upgrade both run side by side.

use redis::Script;

/// How long a session's keys live after the last touch, in seconds.
const KEEP: u32 = 86_400;

/// Lua that several scripts share. A server that holds no run id, or another than its own, was emptied, restarted or failed
/// over to, and may have lost what was written last; one without a last heartbeat was out of reach of every node for a lease
/// time. Then a grace period of one lease time begins: no lease of a session with an open turn is taken and no call is claimed
/// until owners and callers have made their entries again.
const SHARED: &str = r"
local function alive(prefix, nodes)
  for node in string.gmatch(nodes or '', '[^,]+') do
    if redis.call('EXISTS', prefix .. 'alive:' .. node, prefix .. 'here:' .. node) > 0 then return true end
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
-- Chooses a living node to serve a session: first one whose client waits for the first call; never `not_me`.
local function heir(prefix, s, not_me)
  local first = redis.call('ZRANGE', s .. 'q', 0, 0)[1]
  local function can(node)
    return node ~= not_me and redis.call('EXISTS', prefix .. 'alive:' .. node) == 1
      and redis.call('EXISTS', prefix .. 'draining:' .. node) == 0
  end
  for node in string.gmatch(first and redis.call('HGET', s .. 'n', first) or '', '[^,]+') do
    if can(node) then return node end
  end
  local t = tonumber(redis.call('TIME')[2])
  local nodes = redis.call('SMEMBERS', prefix .. 'nodes')
  for i = 1, #nodes do
    local node = nodes[(i + t) % #nodes + 1]
    if can(node) then return node end
  end
end
local function in_grace_period(prefix, lease)
  local run, known = string.sub(KEYS[#KEYS], #prefix + 5), redis.call('GET', prefix .. 'world')
  -- A server that does not tell its run can still be seen to be empty.
  local new = not known or (run ~= '' and known ~= run)
  if new or redis.call('EXISTS', prefix .. 'pulse') == 0 then
    if new then redis.call('SET', prefix .. 'world', run) end
    redis.call('SET', prefix .. 'settling', '1', 'PX', lease)
    redis.call('SET', prefix .. 'pulse', '1', 'PX', lease)
  end
  return redis.call('EXISTS', prefix .. 'settling') == 1
end
";

/// `ARGV`: prefix, session keys' prefix, node, then what each says. The last of `KEYS`: prefix, `run:`, the
/// server's run; no key, but a name that an ACL of the prefix lets pass.
pub(super) struct Scripts {
    /// call, entry, meta, idempotency field, digest, limit, lease ms, place or 0, wake frame, frame to offer the session with
    /// instead of taking it, or empty → status, call, place, owner.
    pub enqueue: Script,
    /// gate (`free`, `held`, `expired`), owner key, lease ms → status, then a call and its entry, or calls.
    pub claim: Script,
    /// for each call its session's keys' prefix and its id → which, from 0 on, are not queued as this node's.
    pub unknown: Script,
    /// call → whether it was dropped.
    pub unclaim: Script,
    /// call.
    pub started: Script,
    /// call, frame.
    pub refuse: Script,
    /// frame, and the call in it that stands for each.
    pub refuse_all: Script,
    /// call → whether it was dropped.
    pub leave: Script,
    /// lease ms, `1` for a session with an open turn → 1 when this node holds the lease now.
    pub take: Script,
    /// lease ms → 1 when this node still holds the lease.
    pub confirm: Script,
    /// lease ms, then the sessions' key prefixes → for each 1, or 2 when its lease was gone and has been made again, or 0 when it
    /// is another's.
    pub renew: Script,
    /// frame to offer the session with, to whom: `another` node, the node of a waiting `caller`, nobody; not to this
    /// node → 1.
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
    /// alive ms, lease ms, `1` if no node was alive before this one, `1` if draining → 1 when Redis did not know this node (any
    /// more).
    pub heartbeat: Script,
    /// → the living nodes.
    pub nodes: Script,
    /// The node leaves.
    pub remove_node: Script,
}

fn script(body: &str) -> Script {
    const HEAD: &str = "local p, s, me = ARGV[1], ARGV[2], ARGV[3]\n";
    let keep = format!(
        "local function keep() for _, k in ipairs({{'q','c','m','n','k','i','l'}}) do redis.call('EXPIRE', s .. k, {KEEP}) end end\n"
    );
    Script::new(&format!("{HEAD}{SHARED}{keep}{body}"))
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            enqueue: script(
                r"
local call, entry, meta, idem, digest = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local limit, lease, given, wake = tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11]), ARGV[12]
local offer = ARGV[13]
local grace = in_grace_period(p, lease)
-- The node that asks is alive, even if its heartbeat has not come through since its connection broke.
if redis.call('EXISTS', p .. 'alive:' .. me) == 0 then redis.call('SET', p .. 'here:' .. me, '1', 'PX', lease) end
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
  -- The last caller here has left; this was sent before, on a connection that broke.
  if redis.call('EXISTS', s .. 'gone:' .. call .. ':' .. me) == 1 then return {'ok', call, 0, ''} end
  -- One that has had a place was accepted before, and is taken back however many there are by now.
  if given == 0 and redis.call('ZCARD', s .. 'q') >= limit then return {'full', '', 0, ''} end
  -- A call whose node had only been frozen is accepted anew; after a wipe each comes back to its place.
  if given > 0 and grace then
    place = given
    if place > tonumber(redis.call('GET', s .. 'l') or '0') then
      redis.call('SET', s .. 'l', string.format('%.0f', place))
    end
  else
    local t = redis.call('TIME')
    place = math.max(tonumber(t[1]) * 1000000 + tonumber(t[2]), tonumber(redis.call('GET', s .. 'l') or '0') + 1)
    redis.call('SET', s .. 'l', string.format('%.0f', place))
  end
  redis.call('ZADD', s .. 'q', string.format('%.0f', place), call)
  redis.call('HSET', s .. 'c', call, entry)
  redis.call('HSET', s .. 'm', call, meta)
  if idem ~= '' then redis.call('HSET', s .. 'i', idem, call .. ':' .. digest) end
end
local nodes = redis.call('HGET', s .. 'n', call) or ''
if not string.find(nodes, me, 1, true) then
  redis.call('HSET', s .. 'n', call, nodes .. ',' .. me)
  keep()
end
local owner = redis.call('GET', s .. 'o')
if not owner and not grace and offer ~= '' then
  local node = heir(p, s, me)
  if node then post(p, node, offer) end
elseif not owner and not grace then
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
local grace = in_grace_period(p, lease)
local owner = redis.call('GET', s .. 'o')
if owner and owner ~= me then return {'lost'} end
-- A lease that is gone is made again by the next renewal, unless another is faster.
if grace or not owner then return {'wait'} end
local first, owners, compacts = nil, nil, {'refuse'}
local function visit(calls)
  for _, call in ipairs(calls) do
    local meta = redis.call('HGET', s .. 'm', call)
    -- One that was claimed before recorded nothing, or is in the log already: then its append says so.
    if not meta or not alive(p, redis.call('HGET', s .. 'n', call)) then
      forget(s, call)
    else
      local method, key = string.match(meta, '^([^|]*)|([^|]*)|')
      if gate == 'held' and method == 'compact' then compacts[#compacts + 1] = call end
      if not first then first = call end
      if not owners and method == 'message' and key == holder then owners = call end
    end
  end
  return #calls > 0
end
if gate == 'free' then
  -- The first that is alive goes; what is dead before it is forgotten.
  while not first and visit(redis.call('ZRANGE', s .. 'q', 0, 0)) do end
else
  visit(redis.call('ZRANGE', s .. 'q', 0, -1))
end
if #compacts > 1 then return compacts end
local call = first
if gate == 'held' then call = owners elseif gate == 'expired' and owners then call = owners end
if not call then return {'wait'} end
redis.call('HSET', s .. 'k', call, me)
keep()
return {'run', call, redis.call('HGET', s .. 'c', call)}
",
            ),
            unknown: script(
                r"
local unknown = {}
for i = 4, #ARGV, 2 do
  local nodes = redis.call('HGET', ARGV[i] .. 'n', ARGV[i + 1])
  if not (nodes and string.find(nodes, me, 1, true) and redis.call('ZSCORE', ARGV[i] .. 'q', ARGV[i + 1])) then
    unknown[#unknown + 1] = (i - 4) / 2
  end
end
return unknown
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
  local frame = string.gsub(ARGV[4], ARGV[5], call, 1)
  post_all(p, redis.call('HGET', s .. 'n', call), me, frame)
  forget(s, call)
end
return 1
",
            ),
            leave: script(
                r"
redis.pcall('SET', s .. 'gone:' .. ARGV[4] .. ':' .. me, '1', 'EX', 60)
local nodes, left = redis.call('HGET', s .. 'n', ARGV[4]), {}
for node in string.gmatch(nodes or '', '[^,]+') do
  if node ~= me then left[#left + 1] = node end
end
if #left > 0 then
  redis.call('HSET', s .. 'n', ARGV[4], table.concat(left, ','))
  return 0
end
-- Claimed by the one who owns the session: it runs, or is dropped when it is given back.
local claimed = redis.call('HGET', s .. 'k', ARGV[4])
if claimed and claimed == redis.call('GET', s .. 'o') then
  redis.call('HDEL', s .. 'n', ARGV[4])
  return 0
end
forget(s, ARGV[4])
return 1
",
            ),
            take: script(
                r"
local grace = in_grace_period(p, ARGV[4])
local owner = redis.call('GET', s .. 'o')
if owner == me then redis.call('PEXPIRE', s .. 'o', ARGV[4]) return 1 end
if owner or (grace and ARGV[5] == '1') then return 0 end
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
in_grace_period(p, ARGV[4])
local held = {}
for i = 5, #ARGV do
  local lease = ARGV[i] .. 'o'
  local owner = redis.call('GET', lease)
  if owner == me then
    -- Works when the memory is full, too.
    redis.call('PEXPIRE', lease, ARGV[4])
    held[#held + 1] = 1
  elseif not owner then
    redis.call('SET', lease, me, 'PX', ARGV[4])
    held[#held + 1] = 2
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
local node = nil
if ARGV[5] == 'another' then node = heir(p, s, me)
elseif ARGV[5] == 'caller' and redis.call('ZCARD', s .. 'q') > 0 then node = heir(p, s, ARGV[6]) end
if node then post(p, node, ARGV[4]) end
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
            heartbeat: script(
                r"
local new = 0
in_grace_period(p, ARGV[5])
if ARGV[6] == '1' then redis.call('DEL', p .. 'settling') end
-- What is there already is only prolonged: that works when the memory is full, too.
if redis.call('PEXPIRE', p .. 'alive:' .. me, ARGV[4]) == 0 then
  redis.call('SET', p .. 'alive:' .. me, '1', 'PX', ARGV[4])
  new = 1
end
if redis.call('PEXPIRE', p .. 'pulse', ARGV[5]) == 0 then redis.call('SET', p .. 'pulse', '1', 'PX', ARGV[5]) end
if redis.call('SISMEMBER', p .. 'nodes', me) == 0 then redis.call('SADD', p .. 'nodes', me) end
if ARGV[7] == '1' then redis.call('SET', p .. 'draining:' .. me, '1', 'EX', 3600) end
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
            remove_node: script(
                r"
redis.call('DEL', p .. 'alive:' .. me, p .. 'draining:' .. me, p .. 'inbox:' .. me)
redis.call('SREM', p .. 'nodes', me)
return 1
",
            ),
        }
    }
}
