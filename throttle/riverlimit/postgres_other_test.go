//go:build !linux

package riverlimit_test

import "syscall"

func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
