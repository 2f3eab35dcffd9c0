package throttle

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// WakeRequest asks for those of a provider whose turn is near.
type WakeRequest struct {
	// Provider is the first name of the scopes. Required.
	Provider string
	// Lead is how long before its start one is released at the latest, and Spread how
	// much earlier it may be, so that one call serves several.
	Lead, Spread time.Duration
	// Most is how many to release at most.
	Most int
	// More is how many more to release of those whose start has come already, and who
	// need not wait for it.
	More int
	// All looks at every round whatever it waits for: limits may have changed.
	All bool
	// Glance says that nothing is known to have changed since the last call, and that
	// what that told to be next is yet to come: so two cheap commands, in one round
	// trip, are enough to see whether anything came before it. Only then, and every
	// few seconds, the call does what it does without.
	Glance bool
	// Gone are tasks that there are no more, whether they were released or stand in line:
	// some hundreds at most, since they are taken out in one script call, and of 64 scopes, as
	// those of others stay until their turn. A new task that has the same ticket by then loses
	// its place.
	Gone []Place
	// NotYet and Running say what else became of those released before: there is no such
	// task yet and it is to be tried again; it runs already.
	NotYet, Running []Place
	// StandStill are groups of which nobody can start, as the tasks of a queue that is paused: what
	// the tickets of a group begin with, up to and with the first slash, "-low/" of "-low/17". Those
	// of them whose turn comes, or who have been released and have not come, are parked: they
	// take no units and nobody waits behind them, until they are named in Back.
	StandStill []string
	// Back are those who were parked and go back to the places in their lines that they had. Those are
	// parked too who cost more than a rule can ever admit, and stay so as long as they do.
	Back []Place
	// Leave names scopes of which this caller can run nobody now: those who wait there are left
	// to others, as those of other applications are. It must be quick and is called in Wake's goroutine.
	// Defaults to none.
	Leave func(scope string) bool
}

// Woken is what Wake answers.
type Woken struct {
	// Released are those whose turn it is, in order. Each has its start when it asks
	// with its ticket, and loses its turn when it has not asked after 3 s.
	Released []Place
	// Waiting says that somebody waits, and Next in how long to call Wake again.
	Waiting bool
	Next    time.Duration
	// Out is how many that this Limiter has released, these included, have not asked
	// yet.
	Out int
	// Parked says that some are parked, as of the last call that was no glance:
	// Limiter.Parked names them.
	Parked bool
	// Slow has a ticket of each group of which somebody was released a while ago, a quarter of a
	// second or more, and has not asked.
	Slow []string
}

// Wake releases those who wait and whose turn is near, in the order of their turns. Those of a
// scope that the application (Config.App) may not spend from, or that Leave names, it leaves to
// others, whom they wait for; what lies behind them in order does not.
// Any number of processes may call it: each turn is given once. It charges nothing.
// Costs one round trip, one more after a glance that sees something, and another where
// scopes come up that this Limiter has not met lately. The error wraps ErrUnavailable,
// or is ctx's.
func (l *Limiter) Wake(ctx context.Context, req WakeRequest) (Woken, error) {
	if l.grants {
		return l.wakeByGrants(ctx, req)
	}
	scopes := l.lines.of(req.Provider)
	if req.Glance && req.nothingNew() {
		woken, quiet, err := l.glance(ctx, req.Provider, scopes)
		if quiet || err != nil && !damaged(err) {
			return woken, err
		}
	}
	scopes.met(req.scopes(), nil)
	var out Woken
	var reply wakeReply
	for range maxWakeCalls {
		var err error
		if reply, err = l.wake(ctx, req, scopes); err != nil {
			return out, unavailable(ctx, "wake those who wait for", req.Provider, err)
		}
		out.Released = append(out.Released, reply.released...)
		out.Out = int(reply.out)
		out.Waiting, out.Next = reply.next > 0, max(0, time.Duration(reply.next-reply.now)*time.Microsecond)
		out.Parked, out.Slow = reply.parked, reply.slow
		scopes.met(reply.near, reply.missing)
		if len(reply.missing) == 0 && !reply.stale {
			break
		}
		left := max(0, req.Most+req.More-len(reply.released))
		req.More = min(req.More, left)
		req.Most = left - req.More
		req.Gone, req.NotYet, req.Running, req.Back, req.All = nil, nil, nil, nil, reply.stale
	}
	scopes.looked(reply.next, out)
	return out, nil
}

// nothingNew says that the call brings no news and that everything may stay as it is.
func (r WakeRequest) nothingNew() bool {
	return !r.All && len(r.Gone)+len(r.NotYet)+len(r.Running)+len(r.Back) == 0
}

// glance looks whether all is as the last look left it: nobody is out, and no round is
// due before what it told to be next. It says so only until that comes, and not for
// long, since a clock that is set back makes everything later than it was to be.
func (l *Limiter) glance(ctx context.Context, provider string, scopes *scopeSet) (woken Woken, quiet bool, err error) {
	next, until, parks := scopes.quiet()
	if !time.Now().Before(until) {
		return woken, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	prefix := keyspace(l.cfg.Prefix).provider(provider)
	var first *redis.ZSliceCmd
	var out *redis.IntCmd
	err = ReadFromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		first, out = pipe.ZRangeWithScores(ctx, dueKey(prefix), 0, 0), pipe.Exists(ctx, outKey(prefix))
		return nil
	})
	if err != nil {
		return woken, false, unavailable(ctx, "look for those who wait for", provider, err)
	}
	due := first.Val()
	if len(due) == 0 || int64(due[0].Score) < next || out.Val() > 0 {
		return woken, false, nil
	}
	return Woken{Waiting: true, Next: max(0, time.Until(until)), Parked: parks}, true, nil
}

// scopes are those of the news.
func (r WakeRequest) scopes() (scopes []string) {
	for _, p := range slices.Concat(r.Gone, r.NotYet, r.Running, r.Back) {
		scopes = append(scopes, p.Scope)
	}
	return scopes
}

const (
	// maxWakeCalls bounds the round trips of one Wake: scopes that still come up are
	// for the next.
	maxWakeCalls = 4
	// maxLines is how many scopes a call brings along: those met last.
	maxLines  = 64
	nearRules = 16
)

type wakeReply struct {
	now, next int64
	out       int64
	released  []Place
	missing   []string
	near      []string
	parked    bool
	slow      []string
	stale     bool // it went by rules whose hours have begun or ended
	damaged   bool // it released what is no ticket
}

func appendNews(args []any, what string, list []Place) []any {
	for _, p := range list {
		args = append(args, what, scopePath(p.Scope), p.ticket())
	}
	return args
}

func (l *Limiter) wake(ctx context.Context, req WakeRequest, scopes *scopeSet) (wakeReply, error) {
	prefix := keyspace(l.cfg.Prefix).provider(req.Provider)
	all := 0
	if req.All {
		all = 1
	}
	known, near := scopes.known()
	t := l.table(known)
	t.leave(req.Leave)
	args := []any{
		l.clock(), l.slots.client + NewID(), req.Lead.Microseconds(), req.Spread.Microseconds(), max(0, req.Most), all, max(0, req.More), near,
	}
	args = t.appendArgs(args)
	// In this order: who is gone is not put back, whatever else is said of it.
	args = appendNews(args, "f", req.Gone)
	args = appendNews(args, "a", req.NotYet)
	args = appendNews(args, "r", req.Running)
	args = appendNews(args, "b", req.Back)
	for _, group := range req.StandStill {
		args = append(args, "s", "", group)
	}
	asked := time.Now()
	send := func() (reply wakeReply, err error) {
		list, err := l.mending(ctx, req.Provider, lua.Wake.For(t.kinds()), t, t.keys(prefix), args)
		if err != nil {
			return wakeReply{}, err
		}
		return readWake(req.Provider, list)
	}
	reply, err := send()
	if reply.damaged && l.mended(ctx, req.Provider, t.lines, errDamaged) {
		reply, err = send() // the same id brings the same tasks
	}
	if err == nil {
		// The next look is soon where the calendar of a plan was stale.
		reply.stale = l.told(prefix, asked, time.UnixMicro(reply.now), known) && len(l.plans.hours()) > 0
	}
	return reply, err
}

func readWake(provider string, reply []any) (out wakeReply, err error) {
	lists := make([][]any, 5)
	if len(reply) != len(lists) {
		return out, errReply
	}
	for i := range lists {
		list, ok := reply[i].([]any)
		if !ok {
			return out, errReply
		}
		lists[i] = list
	}
	times, released := lists[0], lists[1]
	if len(times) != 4 || len(released)%2 != 0 {
		return out, errReply
	}
	out.now, _ = times[0].(int64)
	out.next, _ = times[1].(int64)
	out.out, _ = times[2].(int64)
	out.parked = times[3] == int64(1)
	for i := 0; i < len(released); i += 2 {
		out.damaged = out.damaged || !strings.Contains(text(released[i+1]), ":")
		out.released = append(out.released, readPlace(scopeOf(provider, released[i]), text(released[i+1])))
	}
	for _, s := range lists[2] {
		out.missing = append(out.missing, scopeOf(provider, s))
	}
	for _, s := range lists[3] {
		out.near = append(out.near, scopeOf(provider, s))
	}
	for _, s := range lists[4] {
		out.slow = append(out.slow, readPlace("", text(s)).Ticket)
	}
	return out, nil
}
