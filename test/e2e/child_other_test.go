//go:build !linux

package e2e

import "syscall"

// childAttr is empty where the kernel has no parent-death signal.
func childAttr() *syscall.SysProcAttr { return nil }
