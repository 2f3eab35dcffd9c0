// Package control is what the program worker and package page ask and do for people. A Service answers where a task is and what it
// waits for, which tasks wait in a scope, and who paused it; docs/json.md describes the JSON of its answers. Service.Apply changes the
// limits, and Service.ApplyTasks changes waiting tasks.
//
// Each call names the Actor that it is for. The rights of actors are checked here and nowhere else; the error is a *ForbiddenError.
//
// Its exported names may change in any version.
package control

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policystore"
)

// Config configures New.
type Config struct {
	Redis     redis.UniversalClient // has the tasks and the limits; required
	Limiter   *throttle.Limiter     // has the limits that count; required, but for Servers and Serves
	KeyPrefix string                // as throttle.Config.Prefix; defaults to "hw"
	Store     *policystore.Store    // where these limits are published; nil if they come from a file
	Now       func() time.Time      // the clock of this host; defaults to time.Now
	Logger    *slog.Logger          // gets one line for each rule, and each change of tasks; defaults to none
}

// Service answers and acts. It is safe for concurrent use.
type Service struct {
	rdb       redis.UniversalClient
	limiter   *throttle.Limiter
	prefix    string
	store     *policystore.Store
	inspector *asynq.Inspector
	now       func() time.Time
	log       *slog.Logger
	servers   servers
	names     atomic.Pointer[namedScopes]
}

// New returns a Service. It does no I/O.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{
		rdb: cfg.Redis, limiter: cfg.Limiter, prefix: cfg.KeyPrefix, store: cfg.Store, now: cfg.Now,
		log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), inspector: asynq.NewInspectorFromRedisClient(cfg.Redis),
	}
}

// Time is a moment in an answer. Its JSON is RFC 3339 in UTC with milliseconds, and "" for the zero Time.
type Time struct{ time.Time }

// At returns a moment as a Time.
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

// Range is between when an expected start lies in 19 of 20 cases, if it rests on how long runs take. It is zero for others.
type Range struct {
	StartFrom Time `json:"start_from,omitzero"`
	StartTo   Time `json:"start_to,omitzero"`
}

// expected returns the moment that is expected, counted from at, and zero if that is unknown.
func expected(at time.Time, in throttle.Estimate) (Time, Range) {
	switch {
	case !in.Known():
		return Time{}, Range{}
	case in.From == in.To:
		return At(at.Add(in.In)), Range{}
	}
	return At(at.Add(in.In)), Range{At(at.Add(in.From)), At(at.Add(in.To))}
}

// Plain returns the text of an error without the name of its package.
func Plain(err error) string {
	text := err.Error()
	for _, name := range []string{"throttle: ", "queue: ", "policystore: ", "replay: "} {
		text = strings.TrimPrefix(text, name)
	}
	return text
}

// quote returns a name for a sentence, in quotes only if it is empty or cannot be printed as it is.
func quote(name string) string {
	const most = 300
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// counted returns a number with its noun.
func counted(n int64, noun, plural string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.FormatInt(n, 10) + " " + plural
}

// providerOf returns the first name of a scope.
func providerOf(scope string) string {
	provider, _, _ := strings.Cut(scope, "/")
	return provider
}
