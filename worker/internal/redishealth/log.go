package redishealth

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/headway-go/headway/worker/internal/ratelog"
)

const (
	// archivedText is asynq's message about a task that failed for good; logFailure logs it with the reason.
	archivedText = "Retry exhausted for task id"
	// revokedText is asynq's message about a task that was moved, or goes on in another form. The worker logs that where it matters.
	revokedText = "revoke task id="
	// panicText begins asynq's message about a handler that panicked; the stack follows.
	panicText = "recovering from panic."
	// emptyText is asynq's message after each poll that found no task.
	emptyText = "All queues are empty"
	// doubtAge is how old an answer of Redis may be when asynq complains.
	doubtAge = time.Second
)

// AsynqLogger is a logger for asynq.Config. asynq's messages about itself become Debug: the worker logs them in its own words. While
// Redis is away, asynq's complaints become Debug too, since the Watch has logged their cause once.
type AsynqLogger struct {
	log *slog.Logger
	// outage returns why calls of Redis fail; it pings Redis if the last answer is older than maxAge.
	outage func(ctx context.Context, maxAge time.Duration) error
	// repeats is of complaints: asynq repeats some every three seconds for as long as they last.
	repeats ratelog.Repeats
}

// Debug implements asynq.Logger, without what asynq logs ten times a second while nothing happens.
func (l *AsynqLogger) Debug(args ...any) {
	if fmt.Sprint(args...) != emptyText {
		l.quiet(args)
	}
}

// Info implements asynq.Logger, at level Debug.
func (l *AsynqLogger) Info(args ...any) { l.quiet(args) }

// Warn implements asynq.Logger. While Redis is away it becomes Debug.
func (l *AsynqLogger) Warn(args ...any) { l.complain(slog.LevelWarn, args) }

// Error implements asynq.Logger. While Redis is away it becomes Debug.
func (l *AsynqLogger) Error(args ...any) { l.complain(slog.LevelError, args) }

// Fatal implements asynq.Logger. It does not end the process, as asynq's own logger would.
func (l *AsynqLogger) Fatal(args ...any) { l.complain(slog.LevelError, args) }

func (l *AsynqLogger) quiet(args []any) {
	if ctx := context.Background(); l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "asynq", "message", fmt.Sprint(args...))
	}
}

func (l *AsynqLogger) complain(level slog.Level, args []any) {
	ctx := context.Background()
	text := fmt.Sprint(args...)
	if strings.HasPrefix(text, archivedText) || strings.HasPrefix(text, revokedText) || l.outage(ctx, doubtAge) != nil {
		l.quiet(args)
		return
	}
	about, kind := []any{"message", text}, kindOf(text)
	panicked := strings.HasPrefix(text, panicText)
	if panicked {
		_, trace, _ := strings.Cut(text, "\n")
		kind = Stack(trace) // each distinct one once a minute
		about = []any{"stack", kind}
	}
	if kind != "" {
		more, due := l.repeats.Due(kind, time.Now())
		if !due {
			l.quiet(args)
			return
		}
		if more > 0 {
			about = append(about, "more", more)
		}
	}
	if panicked {
		l.log.Log(ctx, level, "handler panicked", about...)
	} else {
		l.log.Log(ctx, level, "asynq", about...)
	}
}

// NewAsynqLogger returns a logger for asynq.Config that writes to log. Use it with LogLevel asynq.DebugLevel: the level of log decides.
func NewAsynqLogger(log *slog.Logger, w *Watch) *AsynqLogger {
	return &AsynqLogger{log: log, outage: w.Outage}
}

// ids matches the parts that vary among complaints of one kind before their first colon.
var ids = regexp.MustCompile(`id=\S+|\[[^]]*\]`)

// kindOf returns what similar complaints have in common: the words before a colon, without ids of tasks. It is empty for text without
// a colon, which is about one task.
func kindOf(text string) string {
	kind, _, found := strings.Cut(ids.ReplaceAllString(text, "id"), ":")
	if !found {
		return ""
	}
	return kind
}

// quiet is the handler of a logger for packages that use Redis. While Redis is away their warnings become Debug: each task would log
// one, and the Watch has logged the outage. Errors stay.
type quiet struct {
	slog.Handler
	redis func(ctx context.Context, maxAge time.Duration) error
}

// Calm returns a logger for packages that use Redis: while Redis is away, their warnings become Debug.
func (w *Watch) Calm(log *slog.Logger) *slog.Logger {
	return slog.New(&quiet{Handler: log.Handler(), redis: w.Outage})
}

// Handle implements slog.Handler.
func (c *quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && c.redis(context.WithoutCancel(ctx), doubtAge) != nil {
		r.Level = slog.LevelDebug
		if !c.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return c.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (c *quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quiet{c.Handler.WithAttrs(attrs), c.redis}
}

// WithGroup implements slog.Handler.
func (c *quiet) WithGroup(name string) slog.Handler {
	return &quiet{c.Handler.WithGroup(name), c.redis}
}

// Stack returns a stack trace of runtime/debug as one line that every log handler shows as it is: the functions with their files and
// lines, innermost first, from where the panic began. The same panic has the same line each time.
func Stack(trace string) string {
	var frames []string
	lines := strings.Split(strings.TrimSpace(trace), "\n")
	for i := 0; i+1 < len(lines); i++ {
		at, found := strings.CutPrefix(lines[i+1], "\t")
		if !found {
			continue // the goroutine's number, which varies
		}
		i++
		function, _, _ := strings.Cut(strings.TrimPrefix(lines[i-1], "created by "), " in goroutine ")
		if end := strings.LastIndex(function, "("); strings.HasSuffix(function, ")") && end > 0 {
			function = function[:end] // its arguments are addresses
		}
		if function == "panic" {
			frames = nil // what came after handled the panic
			continue
		}
		at, _, _ = strings.Cut(at, " +0x")
		frames = append(frames, path.Base(function)+" "+at)
	}
	return strings.Join(frames, " < ")
}
