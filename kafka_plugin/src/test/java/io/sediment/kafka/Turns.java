package io.sediment.kafka;

import io.grpc.BindableService;
import io.grpc.ForwardingServerCall.SimpleForwardingServerCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.ServerMethodDefinition;
import io.grpc.ServerServiceDefinition;
import java.util.concurrent.CountDownLatch;

/** A server's threads for streams, as RSM has them: the headers go out when one takes a call up. */
final class Turns implements ServerInterceptor {
    private volatile CountDownLatch free = new CountDownLatch(0);

    /** From now on streams wait until {@link #letGoOn}. */
    void hold() {
        free = new CountDownLatch(1);
    }

    void letGoOn() {
        free.countDown();
    }

    /** The service, its streams in turn. */
    ServerServiceDefinition of(BindableService service) {
        ServerServiceDefinition.Builder served =
            ServerServiceDefinition.builder(service.bindService().getServiceDescriptor().getName());
        service.bindService().getMethods().forEach(method -> served.addMethod(flushing(method)));
        return ServerInterceptors.intercept(served.build(), this);
    }

    /** grpc-java keeps headers back where one answer is to come, which RSM does not. */
    private static <ReqT, RespT> ServerMethodDefinition<ReqT, RespT> flushing(
        ServerMethodDefinition<ReqT, RespT> method
    ) {
        var descriptor = method.getMethodDescriptor();
        return descriptor.getType() != MethodType.CLIENT_STREAMING
            ? method
            : ServerMethodDefinition.create(
                descriptor.toBuilder().setType(MethodType.BIDI_STREAMING).build(),
                method.getServerCallHandler());
    }

    @Override
    public <ReqT, RespT> ServerCall.Listener<ReqT> interceptCall(
        ServerCall<ReqT, RespT> call, Metadata headers, ServerCallHandler<ReqT, RespT> next
    ) {
        if (call.getMethodDescriptor().getType() == MethodType.UNARY) {
            return next.startCall(call, headers);
        }
        try {
            free.await();
        } catch (InterruptedException e) {
            // The server goes away.
            Thread.currentThread().interrupt();
        }
        call.sendHeaders(new Metadata());
        return next.startCall(new SimpleForwardingServerCall<>(call) {
            @Override
            public void sendHeaders(Metadata again) {
                // They are there.
            }
        }, headers);
    }
}
