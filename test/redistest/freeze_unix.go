//go:build unix

package redistest

import (
	"syscall"
	"testing"
)

// Freeze stops the server in its tracks (SIGSTOP): connections stay, the kernel accepts new
// ones, and nothing is answered until Thaw. A frozen server may be killed, not stopped.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
}

// Thaw lets a frozen server go on (SIGCONT).
func (s *Server) Thaw(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT)
}

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		t.Fatalf("redistest: %v for a server that is not running", sig)
	}
	if err := s.proc.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("redistest: %v: %v", sig, err)
	}
}
