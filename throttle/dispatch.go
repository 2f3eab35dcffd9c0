package throttle

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// DispatchRequest asks for the grants of a provider's waiters whose turn is near.
type DispatchRequest struct {
	// Provider is the first name of the scopes. Required.
	Provider string
	// Lead is how long before its start a waiter is granted at the latest. Spread is how much earlier it
	// may be granted, so that one call serves several.
	Lead, Spread time.Duration
	// MinLead is how far ahead starts are at least. A caller far from Redis cannot have a task at hand
	// sooner.
	MinLead time.Duration
	// Max is how many waiters to grant at most. MaxReady is how many to grant beyond Max if they are
	// already due.
	Max, MaxReady int
	// CheckAll checks every waiter, whatever it waits for: limits may have changed.
	CheckAll bool
	// OnlyIfDue says that the caller knows of no change since its last call, and that Next of that call
	// has not passed. Two cheap commands in one round trip then check whether anything is due sooner; only
	// then the full call is made.
	OnlyIfDue bool
	// Claimed are granted tasks that have started without asking. Their grants can be given back until
	// Claimed or ReportClaimed names them.
	Claimed []WaiterRef
	// Unused are granted tasks that will not start: they are refunded and get their places back. NotFound
	// are granted tasks that do not exist yet: they go behind eight others.
	Unused, NotFound []WaiterRef
	// Deleted are tasks that no longer exist, granted or waiting: some hundreds at most.
	Deleted []WaiterRef
	// Withdrawn are waiters that leave their queues: some hundreds at most. One that was granted its
	// start keeps it.
	Withdrawn []WaiterRef
	// StalledGroups are groups of which no task can start, such as the group of a paused queue. A group is
	// the beginning of its waiters' ids, up to and including the first slash: "-low/" of "-low/17". A task
	// of such a group is parked when its turn comes. It takes no units, and no other waiter waits behind
	// it, until Unpark names it.
	StalledGroups []string
	// Unpark are parked tasks that get their places back. A task that costs more than a rule can admit is
	// parked too, and stays parked as long as it does.
	Unpark []WaiterRef
	// Groups are the groups of which this caller can start tasks. Tasks of other groups are granted to the
	// callers that serve them. Defaults to all.
	Groups []string
	// Skip reports scopes of which this caller can start no task now. They are left to other callers, as
	// are scopes that Config.App may not spend from; tasks behind them do not wait. It is called in
	// Dispatch's goroutine and must be quick. Defaults to none.
	Skip func(scope string) bool
}

// Granted is a waiter that was granted its start.
type Granted struct {
	WaiterRef
	// Grant is what was taken.
	Grant Grant
	// Wait is the time from the call to the start; negative if the start had passed.
	Wait time.Duration

	at     time.Time      // the call, by the server's clock
	begins time.Time      // the start, by this process's
	under  *compiledScope // nil where the policy does not know the scope any more
}

// Dispatched is the result of Dispatch.
type Dispatched struct {
	// Granted are the waiters that were granted their starts, in order. Name each in Claimed or Unused of
	// a later call, within 3 s.
	Granted []Granted
	// Overdue are tasks that were granted at least 3 s ago and have not been reported since. Find out what
	// became of them, and name them in Claimed, Unused or Deleted.
	Overdue []WaiterRef
	// Waiting says that tasks wait, or were granted a start and have not begun. Next is the time until the
	// next call of Dispatch.
	Waiting bool
	Next    time.Duration
	// Parked says that tasks are parked, as of the last full call.
	Parked bool
	// ForOthers is the number of tasks that were granted for groups that this caller does not serve, or
	// that were left to other callers. Those callers have to call Dispatch.
	ForOthers int
}

// Dispatch grants starts to the waiters whose turn is near, in the order of their turns. Each is
// charged at its start, at most Lead and Spread ahead. Any number of processes may call it: each turn
// is granted once.
//
// Costs one round trip, one more if OnlyIfDue finds something due, and another if the reply names
// scopes that this Limiter has not met recently. The error wraps ErrUnavailable, or is ctx's; then
// report Claimed, Unused, NotFound, Deleted, Withdrawn and Unpark again.
func (w Waitlist) Dispatch(ctx context.Context, req DispatchRequest) (Dispatched, error) {
	scopes := w.l.nexts.of(req.Provider)
	if req.OnlyIfDue && !req.news() {
		d, quiet, err := w.l.glanceQueue(ctx, req.Provider, scopes)
		if quiet || err != nil && !damaged(err) {
			return d, err
		}
	}
	scopes.add(req.scopes())
	var out Dispatched
	var missing []string
	for range maxDispatchCalls {
		reply, err := w.l.dispatch(ctx, req, scopes)
		if err != nil {
			return out, unavailable(ctx, "dispatch those who wait for", req.Provider, err)
		}
		out.Granted = append(out.Granted, reply.granted...)
		out.Overdue = append(out.Overdue, reply.overdue...)
		out.Waiting, out.Next = reply.next > 0, max(0, time.Duration(reply.next-reply.now)*time.Microsecond)
		out.Parked = reply.parked
		out.ForOthers += reply.others
		missing = reply.missing
		scopes.next(reply.near, missing, reply.granted)
		scopes.looked(reply.now, reply.next, out)
		if len(reply.missing) == 0 && !reply.stale {
			break
		}
		left := max(0, req.Max+req.MaxReady-len(reply.granted))
		req.MaxReady = min(req.MaxReady, left)
		req.Max = left - req.MaxReady
		if !reply.stale {
			req.Claimed, req.Unused, req.NotFound, req.Deleted, req.Withdrawn, req.Unpark = nil, nil, nil, nil, nil, nil
		}
		req.CheckAll = reply.stale
	}
	if len(missing) > 0 && len(out.Granted) == 0 { // more scopes are left to others than a call brings along
		out.Next = max(out.Next, missedPause)
	}
	return out, nil
}

// missedPause is when to come again after calls that met more scopes than they could bring along, and granted nobody.
const missedPause = 100 * time.Millisecond

// maxDispatchCalls bounds the round trips of one Dispatch: scopes that still come up are for the next.
const maxDispatchCalls = 4

// news says whether the call has anything to tell.
func (r *DispatchRequest) news() bool {
	return r.CheckAll || len(r.Claimed)+len(r.Unused)+len(r.NotFound)+len(r.Deleted)+len(r.Withdrawn)+len(r.Unpark) > 0
}

// scopes are those of the news, but of what has come: nothing of those is to be changed.
func (r *DispatchRequest) scopes() (scopes []string) {
	for _, p := range slices.Concat(r.Unused, r.NotFound, r.Deleted, r.Withdrawn, r.Unpark) {
		scopes = append(scopes, p.Scope)
	}
	return scopes
}

// glanceQueue looks whether all is as the last call left it; see glance.
func (l *Limiter) glanceQueue(ctx context.Context, provider string, scopes *nextScopes) (d Dispatched, quiet bool, err error) {
	next, stale, until, parks := scopes.quiet()
	if !time.Now().Before(until) {
		return d, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	var first, flying *redis.ZSliceCmd
	prefix := keyspace(l.cfg.Prefix).provider(provider)
	err = redisread.FromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		first, flying = pipe.ZRangeWithScores(ctx, scheduleKey(prefix), 0, 0), pipe.ZRangeWithScores(ctx, overdueKey(prefix), 0, 0)
		return nil
	})
	if err != nil {
		return d, false, unavailable(ctx, "look for those who wait for", provider, err)
	}
	due, out := first.Val(), flying.Val()
	if len(due)+len(out) == 0 || len(due) > 0 && int64(due[0].Score) < next {
		return d, false, nil
	}
	if len(out) > 0 && int64(out[0].Score) <= stale {
		return d, false, nil // or some are to be fetched
	}
	return Dispatched{Waiting: true, Next: max(0, time.Until(until)), Parked: parks}, true, nil
}

type dispatchReply struct {
	now, next int64
	granted   []Granted
	missing   []string
	near      []string
	overdue   []WaiterRef
	parked    bool
	others    int
	stale     bool // nothing was decided: hours have begun or ended
}

func (l *Limiter) dispatch(ctx context.Context, req DispatchRequest, scopes *nextScopes) (reply dispatchReply, err error) {
	prefix := keyspace(l.cfg.Prefix).provider(req.Provider)
	known := scopes.known()
	t := l.table(known)
	t.leave(req.Skip)
	all := 0
	if req.CheckAll {
		all = 1
	}
	args := []any{
		l.clock(), l.slots.client + NewID(), req.Lead.Microseconds(), req.Spread.Microseconds(), max(0, req.Max), max(0, req.MaxReady), all,
		req.MinLead.Microseconds(), t.edge(), scopes.named(),
	}
	args = t.appendArgs(args)
	args = appendNews(args, "c", req.Claimed)
	args = appendNews(args, "f", req.Deleted) // before the others: who is gone is not put back
	args = appendNews(args, "w", req.Withdrawn)
	args = appendNews(args, "u", req.Unused)
	args = appendNews(args, "a", req.NotFound)
	args = appendNews(args, "b", req.Unpark)
	for _, group := range req.StalledGroups {
		args = append(args, "s", "", group)
	}
	for _, group := range req.Groups {
		args = append(args, "m", "", group)
	}
	asked := time.Now()
	send := func() (dispatchReply, error) {
		list, err := l.lists(ctx, lua.Dispatch.For(t.kinds()), t.keys(prefix), args)
		if err != nil {
			return dispatchReply{}, err
		}
		return l.readDispatch(req.Provider, list, asked)
	}
	reply, err = send()
	if err != nil && l.repaired(ctx, req.Provider, known, err) {
		reply, err = send() // the same id brings the same tasks
	}
	if err == nil {
		reply.stale = l.told(prefix, asked, time.UnixMicro(reply.now), known)
	}
	return reply, err
}

func appendNews(args []any, what string, list []WaiterRef) []any {
	for _, p := range list {
		args = append(args, what+p.grant, scopePath(p.Scope), p.ticket())
	}
	return args
}

func (l *Limiter) readDispatch(provider string, list []any, asked time.Time) (out dispatchReply, err error) {
	lists := make([][]any, 5)
	if len(list) != len(lists) {
		return out, errReply
	}
	for i := range lists {
		one, ok := list[i].([]any)
		if !ok {
			return out, errReply
		}
		lists[i] = one
	}
	times, granted, overdue := lists[0], lists[1], lists[4]
	if len(times) != 4 || len(granted)%3 != 0 || len(overdue)%3 != 0 {
		return out, errReply
	}
	out.now, _ = times[0].(int64)
	out.next, _ = times[1].(int64)
	out.parked = times[2] == int64(1)
	others, _ := times[3].(int64)
	out.others = int(others)
	for i := 0; i < len(granted); i += 3 {
		g, err := l.readGranted(readPlace(scopeOf(provider, granted[i]), text(granted[i+1])), text(granted[i+2]), out.now, asked)
		if err != nil {
			return out, err
		}
		out.granted = append(out.granted, g)
	}
	for _, s := range lists[2] {
		out.missing = append(out.missing, scopeOf(provider, s))
	}
	for _, s := range lists[3] {
		out.near = append(out.near, scopeOf(provider, strings.TrimSuffix(text(s), "/")))
	}
	for i := 0; i < len(overdue); i += 3 {
		p := readPlace(scopeOf(provider, overdue[i]), text(overdue[i+1]))
		p.grant = text(overdue[i+2])
		out.overdue = append(out.overdue, p)
	}
	return out, nil
}

// errGrant is a value that is no grant.
var errGrant = fmt.Errorf("a grant in flight is no grant: %w", errDamaged)

// inFlight is a value of what is in flight, as lua/include/fairshare/flight.lua writes it.
type inFlight struct {
	start, granted int64
	score          int64
	places         map[string]int64 // by the rule's name
	id             string
}

func readInFlight(v string) (f inFlight, err error) {
	parts := strings.Fields(v)
	if len(parts) < 4 {
		return f, errGrant
	}
	f.places, f.id = make(map[string]int64, len(parts)-4), parts[3]
	for i, into := range []*int64{&f.start, &f.score, &f.granted} {
		if *into, err = strconv.ParseInt(parts[i], 10, 64); err != nil {
			return f, errGrant
		}
	}
	for _, part := range parts[4:] {
		name, place, _ := strings.Cut(part, "=")
		place, _, _ = strings.Cut(place, ":") // a bucket's rate follows, which only scripts need
		if f.places[name], err = strconv.ParseInt(place, 10, 64); err != nil {
			return f, errGrant
		}
	}
	return f, nil
}

// readGranted reads what a task was granted.
func (l *Limiter) readGranted(p WaiterRef, value string, now int64, asked time.Time) (Granted, error) {
	f, err := readInFlight(value)
	if err != nil {
		return Granted{}, err
	}
	p.grant = f.id
	out := Granted{WaiterRef: p, Wait: time.Duration(f.start-now) * time.Microsecond}
	of, err := l.scopes.of(p.Scope)
	if err != nil {
		return out, nil //nolint:nilerr // a policy that no longer knows the scope: it took nothing that can be told
	}
	req := Request{Scope: p.Scope, Cost: p.cost}
	if costs, err := policy.ParseCosts(p.costs); err == nil {
		req.Costs = costs
	}
	if counted, err := l.withCost(of, &req); err == nil {
		of = counted
	}
	g := Grant{scope: p.Scope, id: f.id, plan: of, cost: of.price(&req), start: f.start, probe: strings.HasSuffix(f.id, "!")}
	g.places, g.told = newPlaces(len(of.bounds))
	for i := range of.keys {
		g.places[i] = f.places[of.ruleName(i)]
	}
	g.from = asked.Add(out.Wait)
	if l.clock() == "" { // else a test's, which stands still
		g.came = time.Now().Add(out.Wait)
	}
	out.Grant, out.under, out.at = g, of, time.UnixMicro(now)
	out.begins = of.clock(&l.skews).begins(asked, time.Now(), out.at, out.Wait)
	return out, nil
}

// handed returns the decision of one who was granted its start by Dispatch, and needs not ask: as long as the limits are
// what they were then, and the start can be in time.
func (l *Limiter) handed(ctx context.Context, req *Request) (d Decision, ok bool) {
	g := req.Turn.Granted
	if g == nil || g.under == nil || req.Scope != g.Scope || req.standing != comes {
		return d, false
	}
	asks := *req // prepare fills in what only one who asks needs
	p, err := l.prepare(&asks)
	if err != nil || p != g.under || p.stale(l.serverTime(p.provider)) || asks.place().ticket() != g.ticket() {
		return d, false
	}
	d = Decision{
		Allowed: true, Handed: true, Wait: g.Wait, At: g.at, Binding: -1, Grant: g.Grant, Rules: slices.Clone(p.states),
		Position: noTurn, begins: g.begins, under: p,
	}
	l.begins(&d)
	if !l.inTime(&d) || p.misses(&d) {
		return Decision{}, false
	}
	if g.Grant.probe {
		l.reports.probe(p, d.begins)
	}
	l.observe(ctx, &d, 0, nil)
	return d, true
}

// ReportClaimed reports granted tasks that have started without asking, see Turn.Granted. They are no
// longer in flight, and their grants do not come back by themselves. Costs one round trip. The error
// wraps ErrUnavailable, or is ctx's; the same tasks may be reported again.
func (w Waitlist) ReportClaimed(ctx context.Context, provider string, claimed []WaiterRef) error {
	prefix := keyspace(w.l.cfg.Prefix).provider(provider)
	fields := make([]string, len(claimed))
	members := make([]any, len(claimed))
	for i, p := range claimed {
		fields[i] = flightField(p)
		members[i] = fields[i]
	}
	ctx, cancel := context.WithTimeout(ctx, w.l.cfg.Timeout)
	defer cancel()
	_, err := w.l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HDel(ctx, flightKey(prefix), fields...)
		pipe.ZRem(ctx, overdueKey(prefix), members...)
		return nil
	})
	if err != nil {
		return unavailable(ctx, "tell who has come of", provider, err)
	}
	return nil
}

// flightField is under which name a task is in flight.
func flightField(p WaiterRef) string { return scopePath(p.Scope) + "\x00" + p.ticket() }
