package throttle

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// DispatchRequest asks for the grants of those of a provider whose turn is near.
type DispatchRequest struct {
	// Provider is the first name of the scopes. Required.
	Provider string
	// Lead is how long before its start a task is granted at the latest, and Spread how much earlier it may
	// be, so that one call serves several.
	Lead, Spread time.Duration
	// MinLead is how far ahead the starts are at least: sooner no task can be where it runs, since Redis is far.
	MinLead time.Duration
	// Max is how many to grant at most, and MaxReady how many beyond Max if their start has come already.
	Max, MaxReady int
	// CheckAll looks at everybody, whatever they wait for: limits may have changed.
	CheckAll bool
	// OnlyIfDue says that nothing is known to have changed since the last call, and that what that told to be
	// next is yet to come: two cheap commands, in one round trip, are enough to see whether anything came before it. Only
	// then the call does what it does without.
	OnlyIfDue bool
	// Claimed are tasks that were granted and have come, and did not ask. Until this, or ReportClaimed, says so their
	// grants are kept to be given back.
	Claimed []WaiterRef
	// Unused are tasks that were granted and will not come: what they were granted is given back, and they go
	// back to their places. NotYet are those that do not exist yet: they go behind eight others.
	Unused, NotFound []WaiterRef
	// Deleted are tasks that there are no more, whether they were granted or wait: some hundreds at most.
	Deleted []WaiterRef
	// StalledGroups are groups of which nobody can start, as the tasks of a queue that is paused: what
	// the tickets of a group begin with, up to and with the first slash, "-low/" of "-low/17". Those
	// of them whose turn comes are parked: they take no units and nobody waits behind them, until they are
	// named in Back.
	StalledGroups []string
	// Unpark are those who were parked and go back to their places. Those are parked too who cost more than a
	// rule can admit, and stay so as long as they do.
	Unpark []WaiterRef
	// Groups are the groups of which this caller can start tasks; those of others are granted for whoever
	// serves them. Defaults to all.
	Groups []string
	// Skip names scopes of which this caller can run nobody now. They, and those of a scope that the application
	// (Config.App) may not spend from, are left to others; who is behind them in order does not wait. It must be quick and
	// is called in Dispatch's goroutine. Defaults to none.
	Skip func(scope string) bool
}

// Granted is a task whose turn has come, with its grant.
type Granted struct {
	WaiterRef
	// Grant is what it took.
	Grant Grant
	// Wait is how long its start was ahead when the call was made; below 0 where it was over.
	Wait time.Duration

	at     time.Time      // the call, by the server's clock
	begins time.Time      // the start, by this process's
	under  *compiledScope // nil where the policy does not know the scope any more
}

// Dispatched is what Dispatch answers.
type Dispatched struct {
	// Granted are those whose turn it is, in order. Each is to be named in Claimed or Unused of a later
	// call, within 3 s.
	Granted []Granted
	// Overdue are tasks that somebody was granted 3 s ago or longer, and nobody has said what became of them: this
	// caller is to find out, and to name them in Claimed, Unused or Gone.
	Overdue []WaiterRef
	// Waiting says that somebody waits, or was granted a start and has not come, and Next in how long to call Dispatch again.
	Waiting bool
	Next    time.Duration
	// Parked says that some are parked, as of the last call that was no glance.
	Parked bool
	// ForOthers is how many were granted that this caller does not serve, or were left to others: those are to call Dispatch.
	ForOthers int
}

// Dispatch grants those who wait and whose turn is near their starts, in the order of their turns: each is
// charged for its start, at most Lead and Spread ahead.
// Any number of processes may call it: each turn is given once. Costs one round trip, one more after a glance that
// sees something, and another where scopes come up that this Limiter has not met lately. The error wraps
// ErrUnavailable, or is ctx's; the news are to be told again then.
func (l *Limiter) Dispatch(ctx context.Context, req DispatchRequest) (Dispatched, error) {
	scopes := l.nexts.of(req.Provider)
	if req.OnlyIfDue && !req.news() {
		d, quiet, err := l.glanceQueue(ctx, req.Provider, scopes)
		if quiet || err != nil && !damaged(err) {
			return d, err
		}
	}
	scopes.add(req.scopes())
	var out Dispatched
	var missing []string
	for range maxDispatchCalls {
		reply, err := l.dispatch(ctx, req, scopes)
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
			req.Claimed, req.Unused, req.NotFound, req.Deleted, req.Unpark = nil, nil, nil, nil, nil
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
	return r.CheckAll || len(r.Claimed)+len(r.Unused)+len(r.NotFound)+len(r.Deleted)+len(r.Unpark) > 0
}

// scopes are those of the news, but of what has come: nothing of those is to be changed.
func (r *DispatchRequest) scopes() (scopes []string) {
	for _, p := range slices.Concat(r.Unused, r.NotFound, r.Deleted, r.Unpark) {
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
	err = ReadFromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
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

// inFlight is a value of what is in flight, as lua/include/waiting/flight.lua writes it.
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
	g := Grant{scope: p.Scope, id: f.id, plan: of, cost: of.price(&req), start: f.start}
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
func (l *Limiter) handed(req *Request) (d Decision, ok bool) {
	g := req.Granted
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
	if l.cfg.Observer != nil {
		l.cfg.Observer.Decided(d, 0, nil)
	}
	return d, true
}

// ReportClaimed says of tasks that were granted their starts by Dispatch that they have taken them, without asking: see
// Request.Granted. They are in flight no more, and nothing of their grants comes back by itself. Costs one round trip. The
// error wraps ErrUnavailable, or is ctx's; they may be told again.
func (l *Limiter) ReportClaimed(ctx context.Context, provider string, claimed []WaiterRef) error {
	prefix := keyspace(l.cfg.Prefix).provider(provider)
	fields := make([]string, len(claimed))
	members := make([]any, len(claimed))
	for i, p := range claimed {
		fields[i] = flightField(p)
		members[i] = fields[i]
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
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
