//go:build !linux

package redistest

import "syscall"

// childAttr is empty where the kernel has no parent-death signal: a test binary that is killed leaves its programs running.
func childAttr() *syscall.SysProcAttr { return nil }
