package waitlist

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Request asks for the tasks of a provider whose turn is near.
type Request struct {
	Provider string
	// Lead is how long before its start a task is granted at the latest. Spread is how much earlier it may be granted, so that
	// one call serves several. From is how far ahead starts are at least: a caller far from Redis has no task at hand sooner.
	Lead, Spread, From time.Duration
	// Max is how many tasks to grant at most.
	Max int
	// Serves are the asynq queues whose tasks this caller can start, and their weights. Of queues with strict priority the weight
	// is 0, and the first goes first.
	Serves []wire.Weighted
	// Skips are scopes whose tasks this caller cannot start now. They are left to other callers, and delay no task here.
	Skips []string
}

// What is what became of a task.
type What string

const (
	// Came is a granted task that has begun to run.
	Came What = "came"
	// Unused is a granted task that does not start: its units and its place come back.
	Unused What = "back"
	// Used is a granted task that may have started unseen: only its places under concurrency rules come back.
	Used What = "used"
	// Gone is a task that no longer exists or no longer waits. It loses its place. If it was granted, its units come back.
	Gone What = "gone"
	// Left is a task that no longer waits, unless it was granted: it loses its place then.
	Left What = "left"
)

// News is what became of a task.
type News struct {
	Ref
	What What
}

// Granted is a task that was granted its start.
type Granted struct {
	wire.Grant
	// Scope is what applies to it, nil if the policy no longer knows the scope.
	Scope *wire.Scope
	// Wait is the time from the reply's clock to the start; negative if the start has passed.
	Wait time.Duration
	// Starts is the start by this process's clock.
	Starts time.Time

	provider string
}

// Ref returns the name of the task.
func (g Granted) Ref() Ref { return Ref{wire.ScopeOf(g.provider, g.Grant.Scope), g.Queue, g.ID} }

// Dispatched is the result of Dispatch.
type Dispatched struct {
	// Granted are the tasks that were granted their starts, in order. Report each as Came, Unused or Gone within 3 s.
	Granted []Granted
	// Overdue are tasks that were granted 3 s ago or earlier and not reported since, and are named to one caller a second. Report
	// each as Unused if it waits in asynq, and otherwise as Used or Gone.
	Overdue []Ref
	// Refused are tasks that cost more than a rule will ever admit. They have lost their places.
	Refused []Ref
	// Waits says that tasks wait or are in flight, and Next in how long to call again. If Waits is false, a call is needed only
	// after a wake.
	Waits bool
	Next  time.Duration
}

const (
	// dispatchCalls bounds the round trips of one Dispatch: further scopes with other rules are for the next.
	dispatchCalls = 4
	// deniedPause is when to call again if all that is next waits in scopes that the policy denies: the script looks at them
	// again after so long.
	deniedPause = 100 * time.Millisecond
	// renewBatch is how many rules Renew writes at once.
	renewBatch = 64
)

// Dispatch grants tasks their starts, in the order of their turns, and charges each at its start, at most Lead and Spread ahead.
// Any number of processes may call it: each turn is granted once. Tasks of a scope that the policy denies stay where they are.
//
// It costs one round trip, and up to three more if scopes with other rules than before are next: their rules are brought along
// then. A grant whose reply was lost is Overdue later.
func (l *List) Dispatch(ctx context.Context, req Request) (out Dispatched, err error) {
	version, digest := l.cfg.Scopes.Version()
	call := wire.Dispatch{
		Lead: req.Lead.Microseconds(), Spread: req.Spread.Microseconds(), From: req.From.Microseconds(), Most: max(0, req.Max),
		Version: version, Policy: digest, Serves: req.Serves,
	}
	for _, scope := range req.Skips {
		call.Skips = append(call.Skips, wire.Path(scope))
	}
	for range dispatchCalls {
		reply, err := l.dispatch(ctx, req.Provider, call, &out)
		if err != nil {
			return out, err
		}
		if len(reply.Stale) == 0 {
			break
		}
		if call.Fresh = l.texts(req.Provider, reply.Stale, time.UnixMicro(reply.Now)); len(call.Fresh) == 0 {
			out.Next = max(out.Next, deniedPause)
			break
		}
		call.Most = max(0, call.Most-len(reply.Granted))
	}
	if out.Waits {
		l.noteActive(req.Provider)
	}
	return out, nil
}

// dispatch sends one call, and adds its reply to out.
func (l *List) dispatch(ctx context.Context, provider string, call wire.Dispatch, out *Dispatched) (wire.Dispatched, error) {
	var d wire.Dispatched
	at, err := l.run(ctx, provider, lua.Dispatch, [][]any{call.Args(l.cfg.Clock())}, func(_ int, reply any) (_ int64, err error) {
		d, err = wire.ReadDispatch(reply)
		return d.Now, err
	})
	if err != nil {
		return d, err
	}
	out.Waits, out.Next = d.Next > 0, wire.Wait(max(0, d.Next-d.Now))
	for _, g := range d.Granted {
		start := time.UnixMicro(g.Start)
		scope, _ := l.scopeAt(wire.ScopeOf(provider, g.Scope), at) // nil if the policy does not know it
		out.Granted = append(out.Granted, Granted{
			Grant: g, Scope: scope, Wait: start.Sub(at), Starts: l.cfg.Clocks.Of(l.Prefix(provider)).ToLocal(start), provider: provider,
		})
	}
	for _, g := range d.Overdue {
		out.Overdue = append(out.Overdue, Ref{wire.ScopeOf(provider, g.Scope), g.Queue, g.ID})
	}
	for _, r := range d.Refused {
		out.Refused = append(out.Refused, Ref{wire.ScopeOf(provider, r[1]), wire.Unescape(r[0]), r[2]})
	}
	return d, nil
}

// texts returns the rules of scopes, without those that the policy denies.
func (l *List) texts(provider string, paths []string, at time.Time) map[string]string {
	texts := map[string]string{}
	for _, path := range paths {
		if s, err := l.scopeAt(wire.ScopeOf(provider, path), at); err == nil {
			texts[path] = s.Text
		}
	}
	return texts
}

// Renew gives waiting tasks of a provider the rules that their scopes have by now, where those in Redis are others under the same policy:
// the tier of a name has changed. pick says for which of some scopes. It costs a round trip for each 1000 scopes, and one for each 64 that
// have other rules.
func (l *List) Renew(ctx context.Context, provider string, pick func([]policy.Scope) []policy.Scope) error {
	version, digest := l.cfg.Scopes.Version()
	fresh := map[string]string{}
	send := func(least int) error {
		if len(fresh) < least || len(fresh) == 0 {
			return ctx.Err()
		}
		call := wire.Dispatch{Version: version, Policy: digest, Fresh: fresh}
		_, err := l.dispatch(ctx, provider, call, &Dispatched{})
		fresh = map[string]string{}
		l.Wake(provider)
		return err
	}
	for cursor, more := uint64(0), true; more; more = cursor > 0 {
		texts, next, err := l.Scan(ctx, provider, "rules", cursor)
		if err != nil {
			return err
		}
		cursor = next
		had, scopes := map[string]string{}, []policy.Scope{}
		for i := 0; i+1 < len(texts); i += 2 {
			if s, err := policy.ParseScope(wire.ScopeOf(provider, texts[i])); err == nil {
				had[s.String()], scopes = texts[i+1], append(scopes, s)
			}
		}
		for _, scope := range pick(scopes) {
			if s, err := l.cfg.Scopes.Of(scope.String()); err == nil && wire.SamePolicy(s.Text, had[scope.String()]) && !wire.SameRules(s.Text, had[scope.String()]) {
				fresh[s.Path] = s.Text
			}
			if err := send(renewBatch); err != nil {
				return err
			}
		}
	}
	return send(0)
}

// Report says what became of tasks of a provider. It costs one round trip, or two if some Came and others did not. After an
// error, report the same again.
func (l *List) Report(ctx context.Context, provider string, news []News) error {
	var came []string
	var acks []wire.News
	for _, n := range news {
		if n.What == Came {
			came = append(came, n.waiter())
			continue
		}
		ack := wire.News{Waiter: n.waiter(), What: string(n.What), Path: wire.Path(n.Scope)}
		if s, err := l.cfg.Scopes.Of(n.Scope); err == nil {
			ack.Text = s.Text
		}
		acks = append(acks, ack)
	}
	if len(came) > 0 {
		if err := l.reportCame(ctx, provider, came); err != nil {
			return err
		}
	}
	if len(acks) == 0 {
		return nil
	}
	_, err := l.run(ctx, provider, lua.Ack, [][]any{wire.AckArgs(l.cfg.Clock(), acks)}, func(int, any) (int64, error) { return 0, nil })
	return err
}

// reportCame ends the flight of tasks that began to run. It needs no script.
func (l *List) reportCame(ctx context.Context, provider string, waiters []string) error {
	err := wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) error {
		_, err := l.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.HDel(ctx, l.Prefix(provider)+"flight", waiters...)
			pipe.ZRem(ctx, l.Prefix(provider)+"flights", waiters)
			return nil
		})
		return err
	})
	if err != nil {
		return wire.Unavailable(ctx, "report tasks of", provider, err)
	}
	return nil
}
