//go:build unix

package main

import (
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

// "SIGTSTP (Ctrl-Z) takes no new task and lets those running go on until SIGTERM."
func TestSIGTSTPTakesNoTask(t *testing.T) {
	t.Parallel()
	a := newAPI(t, make(chan struct{}))
	url, rdb := ownClient(t)
	r := &running{t: t}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-redis", url, "-limits", limitsFile(t, someLimits),
		"-allow-host", a.host(), "-listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = &r.stderr
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	r.says("msg=ready")
	enqueue(t, rdb, a.task("payments/a", "runs"))
	redistest.WaitFor(t, "the task to run", 30*time.Second, func() bool { return a.calls.Load() == 1 })
	for range 2 { // the second changes nothing
		must(t, cmd.Process.Signal(syscall.SIGTSTP))
	}
	r.says("no new tasks are taken")
	redistest.WaitFor(t, "the server to stop looking", 30*time.Second, func() bool {
		return getHealth(t, "http://"+r.found("addr"), http.StatusServiceUnavailable).Status == "stopping"
	})
	enqueue(t, rdb, a.task("payments/a", "new"))
	close(a.let)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	redistest.WaitFor(t, "the running task to end", 30*time.Second, func() bool {
		_, err := inspector.GetTaskInfo("default", "runs")
		return err != nil
	})
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	says(t, r.stderr.String(), `cause="interrupted by signal: terminated"`)
	if got := cmd.ProcessState.ExitCode(); got != cli.ExitOK {
		t.Errorf("exit code %d\n%s", got, r.stderr.String())
	}
	if info, err := inspector.GetTaskInfo("default", "new"); err != nil || info.State != asynq.TaskStatePending || a.calls.Load() != 1 {
		t.Errorf("the new task is %+v, %v, after %d calls", info, err, a.calls.Load())
	}
}
