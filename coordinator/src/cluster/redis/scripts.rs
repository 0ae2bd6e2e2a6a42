//! The Lua scripts that change what Redis holds. Each does one thing atomically and has the same effect when it is
//! repeated. They use commands of Redis 6.2 and no newer ones.
//!
//! The keys of a session have one hash tag in common:
//!
//! - `q`: the queue, a sorted set of calls by their places.
//! - `c`: the entry of each call. `m`: what claiming needs of it, as `method|key|idempotency field`.
//! - `n`: the nodes whose clients wait for each call. `k`: the node that claimed it.
//! - `i`: for each idempotency field, `call:digest`. An idempotency field is `key|idempotency key`.
//! - `l`: the last place that was given.
//! - `o`: the lease, which holds the owner's name. `w`: the nodes that watch the session.
//! - `gone:<call>:<node>`: the last caller on this node has left within the last minute.
//!
//! The keys of the cluster:
//!
//! - `world`: the server run id that nodes met last.
//! - `pulse`: there was a heartbeat of some node within the last lease time.
//! - `settling`: the grace period lasts.
//! - `nodes`: the names of all nodes. `alive:<node>`: its heartbeat is recent. `draining:<node>`: it takes no more
//!   sessions.
//! - `here:<node>`: it queued a call within the last lease time although it was not `alive`.
//! - `inbox:<node>`: the frames for it.
//!
//! When Redis is emptied, nodes write their leases, queue entries and watch sets again within the grace period, and the
//! database knows every call that has started. The key names do not change, because nodes of the version before this
//! one use them at the same time during an upgrade.

use redis::Script;

/// How many seconds a session's keys are kept after they were written last.
const KEEP: u32 = 86_400;

/// Lua functions that several scripts share.
///
/// `in_grace_period` finds out whether the server may have lost what was written last. That is so if `world` is missing
/// or holds another run id than the server's own, because the server was emptied, restarted or replaced by a replica.
/// It is also so if `pulse` is missing, because then no node reached the server for a lease time. A grace period of one
/// lease time begins then. As long as it lasts, no call is claimed and no lease of a session with an unfinished turn is
/// taken, so that owners can renew their leases and nodes can put their waiting calls back first.
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
-- Chooses a living node to serve a session, if possible one whose client waits for the first call, and never `not_me`.
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
  -- Where an ACL hides the run id, `run` is empty. An empty server is still noticed then.
  local new = not known or (run ~= '' and known ~= run)
  if new or redis.call('EXISTS', prefix .. 'pulse') == 0 then
    if new then redis.call('SET', prefix .. 'world', run) end
    redis.call('SET', prefix .. 'settling', '1', 'PX', lease)
    redis.call('SET', prefix .. 'pulse', '1', 'PX', lease)
  end
  return redis.call('EXISTS', prefix .. 'settling') == 1
end
";

/// All scripts. The first three arguments (`ARGV`) of each are the prefix of all keys, the prefix of the session's keys
/// and the name of this node. The further arguments, and after the arrow the result, are given below.
///
/// The last of `KEYS` is the prefix, `run:` and the id of the server's run. No such key exists. The run id is passed in
/// the form of a key so that an ACL that allows the prefix allows it.
pub(super) struct Scripts {
    /// Puts a call into the queue. Call, entry, meta, idempotency field, digest, limit, lease in ms, place or 0, frame
    /// that wakes the owner, frame that offers the session to another node instead of taking it, or empty → status,
    /// call, place, owner.
    pub enqueue: Script,
    /// Claims the next call. Gate (`free`, `held` or `expired`), the client key that keeps it, lease in ms → status,
    /// then a call and its entry, or the calls to refuse.
    pub claim: Script,
    /// Finds calls that Redis does not list as waiting on this node. For each call, the prefix of its session's keys
    /// and its id → the positions of those calls, counted from 0.
    pub unknown: Script,
    /// Gives a claimed call back. Call → 1 if it was dropped because no living node waits for it.
    pub unclaim: Script,
    /// Removes a call from the queue, because it is in the log. Call.
    pub started: Script,
    /// Removes a call from the queue and sends a frame to the nodes that wait for it. Call, frame.
    pub refuse: Script,
    /// Does the same for all calls. Frame, and the call id in the frame that each call's own id replaces.
    pub refuse_all: Script,
    /// The last caller on this node has left. Call → 1 if the call was dropped.
    pub leave: Script,
    /// Takes the leases of sessions with unfinished turns that have none. Lease in ms, `1` if living nodes share them,
    /// frame that offers a session to one of them, the session id in the frame that each session's own id replaces; then
    /// for each session the prefix of its keys and its id → the positions of those whose lease this node holds now,
    /// counted from 0.
    pub take: Script,
    /// Prolongs the lease. Lease in ms → 1 if this node still holds it.
    pub confirm: Script,
    /// Renews leases. Lease in ms, then for each session the prefix of its keys → for each 1 if the lease was renewed,
    /// 2 if it had expired and was made again, 0 if another node holds it.
    pub renew: Script,
    /// Gives leases up. Frame that offers a session, the session id in the frame that each session's own id replaces, a
    /// node that no session with a waiting caller is offered to, or empty; then for each session the prefix of its keys,
    /// its id, and to whom it is offered (`another` node, a node with a waiting `caller`, or empty for nobody) → 1.
    pub release: Script,
    /// → how many calls wait.
    pub waiting: Script,
    /// → the owner, or empty.
    pub owner: Script,
    /// Sends a frame to the owner. Frame → the owner, or empty.
    pub to_owner: Script,
    /// Sends a frame to the nodes that watch the session. Frame.
    pub to_watchers: Script,
    /// Sends a frame to every living node. Frame.
    pub to_all: Script,
    /// Puts this node into the session's watch set. For how many seconds.
    pub watch: Script,
    /// A heartbeat. For how many ms the node counts as alive, lease in ms, `1` if no node was alive before this one,
    /// `1` if draining → 1 if Redis did not list this node as alive.
    pub heartbeat: Script,
    /// → the living nodes, each with `ready` or `draining`.
    pub nodes: Script,
    /// Removes this node from the cluster.
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
-- The node that asks is alive, even if no heartbeat has arrived since its connection broke.
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
  -- The last caller on this node has left already: this command was sent before that, on a connection that broke.
  if redis.call('EXISTS', s .. 'gone:' .. call .. ':' .. me) == 1 then return {'ok', call, 0, ''} end
  -- The limit is for new calls. One that comes with a place was accepted before.
  if given == 0 and redis.call('ZCARD', s .. 'q') >= limit then return {'full', '', 0, ''} end
  -- In the grace period each call gets its old place back. At other times a call that comes with a place had been
  -- dropped, because its node was frozen, and goes to the end.
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
-- A lease that has expired is made again by the next renewal, unless another node takes it before that.
if grace or not owner then return {'wait'} end
local first, owners, compacts = nil, nil, {'refuse'}
local function visit(calls)
  for _, call in ipairs(calls) do
    local meta = redis.call('HGET', s .. 'm', call)
    -- A call that was claimed before is claimed again. If it is in the log already, its append will show that.
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
  -- The first call with a living waiter runs. Calls without one in front of it are removed.
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
-- The session's owner has claimed the call: it runs, or it is dropped when the owner gives it back.
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
local lease, frame, each = ARGV[4], ARGV[6], ARGV[7]
local grace = in_grace_period(p, lease)
local others, turn, held = {}, 0, {}
if ARGV[5] == '1' then
  for _, node in ipairs(redis.call('SMEMBERS', p .. 'nodes')) do
    if node ~= me and redis.call('EXISTS', p .. 'alive:' .. node) == 1
      and redis.call('EXISTS', p .. 'draining:' .. node) == 0 then others[#others + 1] = node end
  end
  turn = tonumber(redis.call('TIME')[2])
end
for i = 8, #ARGV, 2 do
  local owner = redis.call('GET', ARGV[i] .. 'o')
  if owner == me then
    redis.call('PEXPIRE', ARGV[i] .. 'o', lease)
    held[#held + 1] = (i - 8) / 2
  elseif not owner and not grace then
    -- Each of the nodes has its turn, and this one after the last of the others.
    turn = turn + 1
    local other = others[turn % (#others + 1)]
    if other then
      post(p, other, (string.gsub(frame, each, ARGV[i + 1], 1)))
    else
      redis.call('SET', ARGV[i] .. 'o', me, 'PX', lease)
      held[#held + 1] = (i - 8) / 2
    end
  end
end
return held
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
    -- PEXPIRE works even when the memory of the server is full.
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
for i = 7, #ARGV, 3 do
  local keys, to = ARGV[i], ARGV[i + 2]
  if redis.call('GET', keys .. 'o') == me then
    redis.call('DEL', keys .. 'o')
    local node = nil
    if to == 'another' then node = heir(p, keys, me)
    elseif to == 'caller' and redis.call('ZCARD', keys .. 'q') > 0 then node = heir(p, keys, ARGV[6]) end
    if node then post(p, node, (string.gsub(ARGV[4], ARGV[5], ARGV[i + 1], 1))) end
  end
end
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
-- A key that is there is only prolonged, because PEXPIRE works even when the memory of the server is full.
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
