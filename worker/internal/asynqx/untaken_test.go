package asynqx

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errGone = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

// A Redis that ceases to again and again is told once a minute, with how often.
func TestUntakenEndsAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := untaken{log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 61 { // a second each
			<-time.After(time.Second)
			waits := u.failed(false, errGone)
			waits = u.failed(waits, errGone)
			u.ends(waits, nil)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 4 || !strings.Contains(lines[2], "more=59") {
			t.Errorf("logged %q", lines)
		}
		log.Reset()
		waits := u.failed(false, errGone)
		u.ends(waits, errGone)
		if line := log.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, "level=WARN") || !strings.Contains(line, "asynq recovers these tasks") {
			t.Errorf("of one that was given up logged %q", line)
		}
	})
}
