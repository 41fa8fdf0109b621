// A small libtorch training, traced through the C interface: forward calls are
// wrapped, gradients of outputs come by tensor hooks, those of parameters are
// read before the optimizer's step.
//
//     T=$(python3 -c 'import torch; print(torch.__path__[0])')
//     c++ -std=c++17 mlp.cpp -I$T/include -I$T/include/torch/csrc/api/include \
//         -L$T/lib -Wl,-rpath,$T/lib -ltorch -ltorch_cpu -lc10 \
//         $(pkg-config --cflags --libs tracerd)
//     ./a.out                three steps, run "mlp"
//     ./a.out --no-trace     the same numbers untraced
//
// Prints the bits of each step's loss and of the parameters at the end, and
// for each record what torch itself finds: name, elements, max, min, mean.
#include <torch/torch.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "tracerd/client.h"

namespace {

// The dtypes that this training may have; 0 for any other.
int dtype_of(const torch::Tensor &t)
{
    switch (t.scalar_type()) {
    case torch::kFloat64:
        return TRD_F64;
    case torch::kFloat32:
        return TRD_F32;
    case torch::kFloat16:
        return TRD_F16;
    case torch::kBFloat16:
        return TRD_BF16;
    case torch::kInt64:
        return TRD_I64;
    default:
        return 0;
    }
}

// One client, and the sites that it knows.
class Trace {
  public:
    explicit Trace(bool on)
    {
        trd_client_options options;
        if (!on)
            return;
        trd_client_options_init(&options);
        options.run = "mlp";
        options.world = 1;
        int failed = trd_client_open(&options, &client_);
        if (failed)
            std::fprintf(stderr, "mlp: not traced: %s\n",
                         trd_strerror(failed));
    }

    ~Trace()
    {
        if (client_ && trd_flush(client_, 5000))
            std::fprintf(stderr, "mlp: stored later, if a daemon comes\n");
        trd_client_close(client_);
    }

    Trace(const Trace &) = delete;
    Trace &operator=(const Trace &) = delete;

    bool on() const { return client_ != nullptr; }

    // Never throws: what cannot be recorded is counted as lost.
    void record(trd_pass pass, trd_io io, const char *class_name,
                uint32_t instance, const std::string &module,
                const std::string &path, uint64_t step, const torch::Tensor &t)
    {
        if (!client_)
            return;
        const struct trd_site site = {
            pass, io, 0, instance, class_name, module.c_str(), path.c_str()};
        const trd_when when = {step, step, 1, 0, 0};
        const trd_tensor tensor = {t.is_cpu() ? t.data_ptr() : nullptr,
                                   static_cast<trd_dtype>(dtype_of(t)),
                                   static_cast<int>(t.dim()),
                                   t.sizes().data(), t.strides().data()};
        uint32_t id = 0;
        if (trd_site(client_, &site, &id) == 0)
            (void)trd_submit_cpu(client_, id, &when, &tensor, 16);
        else
            trd_lost(client_, TRD_LOST_ERROR, 1);
        print(site, step, t);
    }

  private:
    static void print(const struct trd_site &site, uint64_t step,
                      const torch::Tensor &t)
    {
        torch::NoGradGuard no_grad;
        torch::Tensor d = t.detach().to(torch::kFloat64);
        std::string name = trd_pass_name(site.pass);
        if (site.io == TRD_IO_NONE)
            name += std::string("-") + site.path + "-" + std::to_string(step);
        else
            name += std::string("-") + site.class_name + "-" +
                    std::to_string(site.instance) + "-" +
                    std::to_string(step) +
                    (site.io == TRD_INPUT ? "-input" : "-output");
        std::printf("record %s %" PRId64 " %.17g %.17g %.17g\n", name.c_str(),
                    t.numel(), d.max().item<double>(), d.min().item<double>(),
                    d.mean().item<double>());
    }

    trd_client *client_ = nullptr;
};

// Calls a module and records what goes in, what comes out, and, when it is
// known, the gradient of that. A hook that returns nothing changes nothing.
template <typename Module>
torch::Tensor traced(Trace &trace, const char *class_name, uint32_t instance,
                     const std::string &path, uint64_t step, Module &module,
                     const torch::Tensor &x)
{
    trace.record(TRD_FORWARD, TRD_INPUT, class_name, instance, path, "0", step,
                 x);
    torch::Tensor y = module->forward(x);
    trace.record(TRD_FORWARD, TRD_OUTPUT, class_name, instance, path, "0",
                 step, y);
    if (trace.on() && y.requires_grad())
        y.register_hook([&trace, class_name, instance, path,
                         step](const torch::Tensor &gradient) {
            trace.record(TRD_BACKWARD, TRD_INPUT, class_name, instance, path,
                         "0", step, gradient);
        });
    return y;
}

struct Net : torch::nn::Module {
    Net()
        : fc1(register_module("fc1", torch::nn::Linear(8, 16))),
          fc2(register_module("fc2", torch::nn::Linear(16, 4)))
    {
    }

    torch::Tensor forward(Trace &trace, uint64_t step, const torch::Tensor &x)
    {
        torch::Tensor h = traced(trace, "Linear", 1, "fc1", step, fc1, x);
        return traced(trace, "Linear", 2, "fc2", step, fc2, torch::relu(h));
    }

    torch::nn::Linear fc1, fc2;
};

void record_gradients(Trace &trace, const Net &net, uint64_t step)
{
    const std::map<std::string, uint32_t> instance = {{"fc1", 1}, {"fc2", 2}};
    for (const auto &p : net.named_parameters()) {
        const std::string module = p.key().substr(0, p.key().find('.'));
        trace.record(TRD_GRAD, TRD_IO_NONE, "Linear", instance.at(module),
                     module, p.key(), step, p.value().grad());
    }
}

uint32_t bits_of(float value)
{
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

void print_parameters(const Net &net)
{
    for (const auto &p : net.named_parameters()) {
        torch::Tensor t = p.value().detach().contiguous().view(-1);
        std::printf("parameter %s", p.key().c_str());
        for (int64_t i = 0; i < t.numel(); i++)
            std::printf(" %08" PRIx32, bits_of(t[i].item<float>()));
        std::printf("\n");
    }
}

} // namespace

int main(int argc, char **argv)
{
    bool plain = argc == 2 && !std::strcmp(argv[1], "--no-trace");
    if (argc > 1 && !plain) {
        std::fprintf(stderr, "usage: mlp [--no-trace]\n");
        return 2;
    }
    Trace trace(!plain);
    torch::manual_seed(1);
    Net net;
    torch::optim::SGD optimizer(net.parameters(),
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    // a transposed view: its strides are told, nothing is copied
    torch::Tensor x = torch::randn({8, 32}).t(), wanted = torch::randn({32, 4});
    for (uint64_t step = 1; step <= 3; step++) {
        torch::Tensor y = net.forward(trace, step, x);
        torch::Tensor loss = torch::mse_loss(y, wanted);
        optimizer.zero_grad();
        loss.backward();
        record_gradients(trace, net, step);
        optimizer.step();
        std::printf("loss %08" PRIx32 "\n", bits_of(loss.item<float>()));
    }
    print_parameters(net);
    return 0;
}
