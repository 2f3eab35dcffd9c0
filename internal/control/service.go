package control

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Config is what a Service asks.
type Config struct {
	// Redis is where the tasks are and the limits are kept. Required.
	Redis redis.UniversalClient
	// Limiter has the limits to go by. Required.
	Limiter *throttle.Limiter
	// Store is where these limits are published, with their authors. Nil if they come from a file.
	Store *policystore.Store
	// Inspector reads asynq's queues. Default: one over Redis.
	Inspector *asynq.Inspector
	// Now is the clock of this host. Default: time.Now.
	Now func() time.Time
	// Logger gets one line for each rule and each task that an actor has changed. Default: none.
	Logger *slog.Logger
}

// Service answers and acts. It is safe for concurrent use.
type Service struct {
	rdb       redis.UniversalClient
	limiter   *throttle.Limiter
	store     *policystore.Store
	inspector *asynq.Inspector
	now       func() time.Time
	log       *slog.Logger
	served    served
}

// New returns a Service. It does no I/O.
func New(cfg Config) *Service {
	s := &Service{rdb: cfg.Redis, limiter: cfg.Limiter, store: cfg.Store, inspector: cfg.Inspector, now: cfg.Now, log: cfg.Logger}
	if s.inspector == nil {
		s.inspector = asynq.NewInspectorFromRedisClient(cfg.Redis)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Time is a moment of an answer: in JSON RFC 3339 in UTC with milliseconds, and "" for the zero Time.
type Time struct{ time.Time }

// At returns a moment as answers have it.
func At(at time.Time) Time { return Time{at} }

// String returns the moment as JSON has it.
func (t Time) String() string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// MarshalJSON returns the moment as a string.
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// expected is the moment so long after at; zero if no clock tells. The end of a pause is told as it is.
func expected(at time.Time, in time.Duration, b policy.MatchedRule) Time {
	if b.Paused() {
		return At(b.Until)
	}
	if in == throttle.Never {
		return Time{}
	}
	return At(at.Add(in))
}

// current is the version of the limits that stands in Redis, nil if that is not known or not gone by, and the server's time.
func (s *Service) current(ctx context.Context) (*policystore.Version, time.Time) {
	if s.store == nil {
		return nil, s.now()
	}
	v, err := s.store.Current(ctx)
	if err != nil {
		return nil, s.now()
	}
	if at, err := s.store.Time(ctx); err == nil {
		return &v, at
	}
	return &v, s.now()
}
