package answers

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// keptEvents is how many events of a level are kept, and eventsStay for how long after the newest.
const (
	keptEvents = 20
	eventsStay = 24 * time.Hour
)

// Event is a past change that an API's answer made. Redis has it as JSON; docs/keys.md has its fields.
type Event struct {
	// At is when the answer was reported, by the Redis server's clock.
	At time.Time `json:"at"`
	Change
	// Answered is the scope whose call was answered: Scope, or one below it.
	Answered string `json:"by"`
	// Status, Retry, RetryKnown and Host are those of the answer, upstream.Hint.
	Status     int           `json:"status,omitempty"`
	Retry      time.Duration `json:"retry,omitempty"`
	RetryKnown bool          `json:"retry_known,omitempty"`
	Host       string        `json:"host,omitempty"`
}

// record keeps what an answer changed, for people, in one round trip. A failure is logged alone: no limit depends on it.
func (r *Reporter) record(ctx context.Context, a answer, changes []Change, at time.Time) {
	if len(changes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	_, err := r.cfg.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, change := range changes {
			text, err := json.Marshal(Event{at, change, a.scope.Scope.String(), a.Status, a.Retry, a.RetryKnown, a.Host})
			if err != nil {
				return err
			}
			key := eventsKey(a.scope.Prefix, change.Scope)
			pipe.ZAdd(ctx, key, redis.Z{Score: float64(at.UnixMicro()), Member: text})
			pipe.ZRemRangeByRank(ctx, key, 0, -keptEvents-1)
			pipe.PExpire(ctx, key, eventsStay)
		}
		return nil
	})
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "cannot record what an API's answer changed; limits are not affected", "scope", a.scope.Scope.String(), "error", err)
	}
}

func eventsKey(prefix, level string) string { return prefix + "e:" + wire.Path(level) }

// Events is throttle.Limiter.UpstreamEvents.
func (r *Reporter) Events(ctx context.Context, scope string) ([]Event, error) {
	s, err := policy.ParseScope(scope)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	pipe := r.cfg.Redis.Pipeline()
	prefix, kept := wire.Prefix(r.cfg.Base, s.Provider()), make([]*redis.StringSliceCmd, s.Len())
	for i := range kept {
		kept[i] = pipe.ZRange(ctx, eventsKey(prefix, s.Prefix(i+1).String()), 0, -1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wire.Unavailable(ctx, "ask what was reported of", scope, err)
	}
	var all []Event
	for i, level := range kept {
		for _, text := range level.Val() {
			e := Event{}
			if json.Unmarshal([]byte(text), &e) == nil && !e.At.IsZero() { // else not written by this package
				e.Scope = s.Prefix(i + 1).String()
				all = append(all, e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.What, b.What), cmp.Compare(a.Rule, b.Rule))
	})
	return all, nil
}
